#include "equitile/sparsity/attention_spec.h"

#include <array>
#include <charconv>
#include <cmath>

#include "equitile/base/error.h"
#include "equitile/pattern/token_order_list.h"

namespace equitile {
namespace {

struct NamedKind {
  std::string_view name;
  AttentionKind kind;
  bool needs_file, takes_file;
  std::string_view dials;  // comma list
};

constexpr std::array<NamedKind, 14> kKinds = {{
    {"dense", AttentionKind::kDense, false, false, ""},
    {"mask", AttentionKind::kMask, true, true, ""},
    {"pattern", AttentionKind::kPattern, false, true, ""},
    {"predict", AttentionKind::kPredict, false, true,
     "error,rows,orders,mass,budget,min,refresh,tail,guard"},
    {"observe", AttentionKind::kObserve, false, true,
     "error,rows,orders,mass,budget,min,at,refresh,tail"},
    {"pattern+predict", AttentionKind::kPatternPredict, false, true,
     "error,rows,orders,mass,min,refresh,tail,guard"},
    {"svg", AttentionKind::kSvg, false, false, "density"},
    {"radial", AttentionKind::kRadial, false, false, ""},
    {"sta", AttentionKind::kSta, false, true, "density"},
    {"sparge", AttentionKind::kSparge, false, false, "density"},
    {"window:spatial", AttentionKind::kWindowSpatial, false, false, "density"},
    {"window:temporal", AttentionKind::kWindowTemporal, false, false, "density"},
    {"oracle", AttentionKind::kOracle, false, false, "density,tail"},
    {"static", AttentionKind::kStatic, true, true, ""},
}};

const NamedKind& Named(AttentionKind kind) { return kKinds[static_cast<size_t>(kind)]; }

std::string AllKinds() {
  std::string names;
  for (const NamedKind& kind : kKinds) {
    names +=
        fmt::format("{}{}{}", names.empty() ? "" : ", ", kind.name, kind.needs_file ? ":FILE" : "");
  }
  return names;
}

// What blocks are chosen by, where a source knows both.
enum class Rule : uint8_t { kError, kMass };

// What a spec has before any dial is turned.
AttentionSpec DefaultsOf(AttentionKind kind, Rule rule) {
  AttentionSpec spec;
  spec.kind = kind;
  const bool knows_errors = kind == AttentionKind::kPredict || kind == AttentionKind::kObserve ||
                            kind == AttentionKind::kPatternPredict;
  if (knows_errors && rule == Rule::kError) {
    spec.error = 0.01;
    spec.rows = 4;
    spec.tail = Tail::kMean;
    if (kind != AttentionKind::kObserve) spec.refresh = 4;
    return spec;
  }
  switch (kind) {
    case AttentionKind::kPredict:
      spec.budget = MassBudget::kLayer;
      [[fallthrough]];
    case AttentionKind::kPatternPredict:
      spec.mass = 0.95;
      spec.min = 0.05;
      spec.refresh = 1;
      spec.tail = Tail::kMean;
      break;
    case AttentionKind::kObserve:
      spec.mass = 0.99;
      spec.tail = Tail::kMean;
      break;
    case AttentionKind::kSvg:
    case AttentionKind::kSta:
    case AttentionKind::kWindowSpatial:
    case AttentionKind::kWindowTemporal:
      spec.density = 0.30;
      break;
    case AttentionKind::kOracle:
      spec.density = 0.25;
      spec.tail = Tail::kMean;
      break;
    case AttentionKind::kSparge:
      spec.density = 0.50;
      break;
    default:
      break;
  }
  return spec;
}

// The kind whose name the text begins with, up to its end or a colon; the longest one.
const NamedKind* KindOf(std::string_view text) {
  const NamedKind* best = nullptr;
  for (const NamedKind& kind : kKinds) {
    if (!text.starts_with(kind.name)) continue;
    if (text.size() > kind.name.size() && text[kind.name.size()] != ':') continue;
    if (best == nullptr || kind.name.size() > best->name.size()) best = &kind;
  }
  return best;
}

class Parser {
 public:
  Parser(std::string_view text, bool file_has_weights)
      : text_(text), file_has_weights_(file_has_weights) {}

  AttentionSpec Parse() {
    const NamedKind* kind = KindOf(text_);
    if (kind == nullptr) Fail("must be one of {}", AllKinds());
    spec_ = DefaultsOf(kind->kind, Rule::kError);
    std::string_view rest = text_.substr(kind->name.size());
    if (!rest.empty()) rest.remove_prefix(1);
    if (kind->needs_file) {
      spec_.file = rest;  // which may hold anything
    } else {
      Items(*kind, rest);
      const bool lacks_weights = HasFile(*kind) && !file_has_weights_;
      if (spec_.error && (mass_dial_ || lacks_weights)) {
        if (error_dial_ && mass_dial_) Fail("blocks are chosen by error or by mass, not by both");
        if (error_dial_) {
          Fail(
              "its file has no weights of errors, only masses; make one that has with `equitile "
              "search --objective budget`, or leave error, rows and orders out");
        }
        spec_ = DefaultsOf(kind->kind, Rule::kMass);
        Items(*kind, rest);
      }
    }
    if (kind->needs_file && spec_.file.empty()) FailWithoutFile(*kind);
    spec_.says_error = spec_.error && error_dial_ && HasFile(*kind);
    spec_.says_refresh = spec_.error && refresh_dial_ && HasFile(*kind);
    return spec_;
  }

 private:
  // A pattern that names none is the model's own.
  bool HasFile(const NamedKind& kind) const {
    return !spec_.file.empty() || kind.kind == AttentionKind::kPatternPredict;
  }

  [[noreturn]] void FailWithoutFile(const NamedKind& kind) const {
    if (kind.kind != AttentionKind::kStatic) Fail("FILE is missing");
    Fail(
        "its masks are missing; make them with `equitile search --objective static --prompts FILE "
        "-o FOLDER` and give them, as in static:FOLDER");
  }
  template <typename... Args>
  [[noreturn]] void Fail(fmt::format_string<Args...> why, Args&&... args) const {
    throw InputError("--attention {}: {}", text_, fmt::format(why, std::forward<Args>(args)...));
  }

  // FILE,key=value,... or FILE:key=value,... or key=value,...
  void Items(const NamedKind& kind, std::string_view rest) {
    bool first = true;
    while (!rest.empty()) {
      const size_t end = std::min(rest.find(','), rest.size());
      std::string_view item = rest.substr(0, end);
      rest.remove_prefix(std::min(end + 1, rest.size()));
      if (first) item = TakeFile(kind, item);
      first = false;
      if (!item.empty()) Dial(kind, item);
    }
  }

  // What is left of the first item when the file is taken off it.
  std::string_view TakeFile(const NamedKind& kind, std::string_view item) {
    const size_t equals = item.find('=');
    const size_t colon = equals == item.npos ? item.size() : item.rfind(':', equals);
    if (colon == item.npos) return item;
    if (!kind.takes_file) Fail("{} takes no file", kind.name);
    spec_.file = item.substr(0, colon);
    return item.substr(std::min(colon + 1, item.size()));
  }

  void Dial(const NamedKind& kind, std::string_view item) {
    const size_t equals = item.find('=');
    const std::string_view key = item.substr(0, equals);
    const std::string dials = fmt::format(",{},", kind.dials);
    if (equals == item.npos || dials.find(fmt::format(",{},", key)) == dials.npos) {
      Fail("'{}' is no dial of {}; it has {}", item, kind.name,
           kind.dials.empty() ? "none" : kind.dials);
    }
    const std::string_view value = item.substr(equals + 1);
    error_dial_ |= key == "error" || key == "rows" || key == "orders";
    refresh_dial_ |= key == "refresh";
    mass_dial_ |= key == "mass" || key == "budget" || key == "min" || key == "guard";
    if (key == "error") spec_.error = Share(key, value);
    if (key == "rows") spec_.rows = Rows(value);
    if (key == "orders") spec_.orders = Orders(value);
    if (key == "mass") spec_.mass = Share(key, value);
    if (key == "min") spec_.min = Share(key, value);
    if (key == "guard") spec_.guard = Share(key, value);
    if (key == "density") spec_.density = Share(key, value);
    if (key == "at") spec_.at = Count(key, value);
    if (key == "refresh") {
      spec_.refresh = value == "never" ? std::nullopt : std::optional(Count(key, value));
    }
    if (key == "budget") {
      if (value != "row" && value != "layer") Fail("budget={}: must be row or layer", value);
      spec_.budget = value == "row" ? MassBudget::kRow : MassBudget::kLayer;
    }
    if (key == "tail") {
      if (value != "none" && value != "mean") Fail("tail={}: must be none or mean", value);
      spec_.tail = value == "mean" ? Tail::kMean : Tail::kNone;
    }
  }

  double Share(std::string_view key, std::string_view value) const {
    double number = -1;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
    if (error != std::errc() || end != value.data() + value.size() || !(number >= 0 && number <= 1))
      Fail("{}={}: must be a number from 0 to 1", key, value);
    return number;
  }

  int64_t Rows(std::string_view value) const {
    int64_t number = 0;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
    if (error != std::errc() || end != value.data() + value.size() || number < 1 || number > 64)
      Fail("rows={}: must be a number of queries of each block, from 1 to 64", value);
    return number;
  }

  std::vector<TokenOrder> Orders(std::string_view value) const {
    try {
      const std::vector<TokenOrder> orders = ParseTokenOrders(value);
      if (!orders.empty()) return orders;
    } catch (const InputError&) {
    }
    Fail("orders={}: must be {}, or some of them as in fhw+hwf", value, kTokenOrderNames);
  }

  int64_t Count(std::string_view key, std::string_view value) const {
    int64_t number = 0;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
    if (error != std::errc() || end != value.data() + value.size() || number < 1 ||
        number > 1'000'000) {
      Fail("{}={}: must be a number of steps from 1 on{}", key, value,
           key == "refresh" ? ", or never" : "");
    }
    return number;
  }

  std::string_view text_;
  bool file_has_weights_;
  AttentionSpec spec_;
  // Whether one of these was turned.
  bool error_dial_ = false, mass_dial_ = false, refresh_dial_ = false;
};

}  // namespace

std::string_view DialsOf(AttentionKind kind) { return Named(kind).dials; }

AttentionSpec ParseAttention(std::string_view text, bool file_has_weights) {
  return Parser(text, file_has_weights).Parse();
}

std::string AttentionSpec::Text() const {
  const AttentionSpec defaults = DefaultsOf(kind, error ? Rule::kError : Rule::kMass);
  const bool says_mass = !error && DefaultsOf(kind, Rule::kError).error;
  std::vector<std::string> items;
  if (!file.empty()) items.push_back(file);
  if (says_error || error != defaults.error) items.push_back(fmt::format("error={}", *error));
  if (rows != defaults.rows) items.push_back(fmt::format("rows={}", rows));
  if (orders != defaults.orders) items.push_back("orders=" + TokenOrdersText(orders));
  if (says_mass || mass != defaults.mass) items.push_back(fmt::format("mass={}", mass));
  if (budget != defaults.budget)
    items.push_back(fmt::format("budget={}", budget == MassBudget::kRow ? "row" : "layer"));
  if (min != defaults.min) items.push_back(fmt::format("min={}", min));
  if (density != defaults.density) items.push_back(fmt::format("density={}", density));
  if (at) items.push_back(fmt::format("at={}", *at));
  if (says_refresh || refresh != defaults.refresh)
    items.push_back(refresh ? fmt::format("refresh={}", *refresh) : "refresh=never");
  if (tail != defaults.tail)
    items.push_back(fmt::format("tail={}", tail == Tail::kMean ? "mean" : "none"));
  if (guard != defaults.guard) items.push_back(fmt::format("guard={}", guard));
  std::string text(Named(kind).name);
  for (size_t i = 0; i < items.size(); ++i) text += (i == 0 ? ":" : ",") + items[i];
  return text;
}

int64_t ParseDenseSteps(std::string_view text, int64_t steps) {
  const bool percent = text.ends_with('%');
  const std::string_view digits = text.substr(0, text.size() - (percent ? 1 : 0));
  double number = -1;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  const bool good = error == std::errc() && end == digits.data() + digits.size() && number >= 0 &&
                    (percent ? number <= 100 : number == std::floor(number) && number <= 1e6);
  if (!good)
    throw InputError("--dense-steps {}: must be a number of steps, or a share like 20%", text);
  // Shares have few digits: 20 % of 50 is 10, not 11.
  const double wanted =
      percent ? std::ceil(number / 100 * static_cast<double>(steps) - 1e-9) : number;
  return std::min(static_cast<int64_t>(wanted), steps);
}

std::optional<double> ParseCache(std::string_view text) {
  if (text == "none") return std::nullopt;
  constexpr std::string_view kEasy = "easy";
  if (text == kEasy) return 0.05;
  double bound = -1;
  if (text.starts_with("easy:")) {
    const std::string_view digits = text.substr(kEasy.size() + 1);
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), bound);
    if (error != std::errc() || end != digits.data() + digits.size()) bound = -1;
  }
  if (!(bound > 0 && bound <= 10))
    throw InputError("--cache {}: must be none, easy or easy:BOUND with a bound like 0.05", text);
  return bound;
}

}  // namespace equitile
