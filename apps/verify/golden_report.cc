#include "apps/verify/golden_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

namespace equitile {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

std::vector<int64_t> Coordinates(int64_t index, const std::vector<int64_t>& shape) {
  std::vector<int64_t> at(shape.size());
  for (size_t dim = shape.size(); dim-- > 0;) {
    at[dim] = index % std::max<int64_t>(shape[dim], 1);
    index /= std::max<int64_t>(shape[dim], 1);
  }
  return at;
}

std::string AtText(const GoldenCheck& check) {
  if (!check.note.empty()) return check.note;
  return check.at.empty() ? "" : fmt::format("[{}]", fmt::join(check.at, ", "));
}

Cell NumberCell(double value) {
  return {std::isfinite(value) ? Json(value) : Json(nullptr), fmt::format("{:.3g}", value)};
}

}  // namespace

double GoldenCheck::Severity() const {
  if (ok) return tolerance > 0 ? error / tolerance : 0.0;
  return tolerance > 0 ? std::max(error / tolerance, 1.0 + 1e-9) : kInfinity;
}

void GoldenReport::Near(const std::string& file, const StoredTensor& want,
                        std::span<const float> got, const GoldenTolerance& tolerance) {
  hasher_.Add(got);
  const std::vector<float> expected = want.Floats();
  if (expected.size() != got.size()) {
    return Fail(file, want.name, fmt::format("{} values, golden {}", got.size(), want.ShapeText()));
  }
  double squares = 0, errors = 0, worst = 0;
  size_t at = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    double error = std::fabs(double{got[i]} - double{expected[i]});
    if (std::isnan(error)) error = kInfinity;
    squares += double{expected[i]} * double{expected[i]};
    errors += error * error;
    if (error > worst) worst = error, at = i;
  }
  const double rms = std::sqrt(squares / static_cast<double>(std::max<size_t>(got.size(), 1)));
  const auto over = [](double error, double scale) {
    return error == 0 ? 0.0 : scale > 0 ? error / scale : kInfinity;
  };
  const double error = tolerance.absolute ? worst : over(worst, rms);
  const auto where = Coordinates(static_cast<int64_t>(at), want.shape);
  Add({file, want.name, error, tolerance.max, where, "", error <= tolerance.max});
  if (tolerance.l2 > 0) {
    const double l2 = over(std::sqrt(errors), std::sqrt(squares));
    Add({file, want.name + " (L2)", l2, tolerance.l2, {}, "", l2 <= tolerance.l2});
  }
}

void GoldenReport::Equal(const std::string& file, const StoredTensor& want,
                         std::span<const float> got) {
  std::vector<int64_t> expected, found;
  if (want.type == StoredType::kI64) {
    expected = want.Integers();
    for (const float value : got) found.push_back(static_cast<int64_t>(value));
    return Equal(file, want.name, expected, found);
  }
  hasher_.Add(got);
  const std::vector<float> floats = want.Floats();
  if (floats.size() != got.size()) {
    return Fail(file, want.name, fmt::format("{} values, golden {}", got.size(), want.ShapeText()));
  }
  GoldenCheck check{.file = file, .tensor = want.name};
  for (size_t i = 0; i < got.size(); ++i) {
    if (got[i] == floats[i]) continue;
    if (check.ok) check.at = Coordinates(static_cast<int64_t>(i), want.shape);
    check.ok = false;
    check.error += 1;
  }
  Add(std::move(check));
}

void GoldenReport::Equal(const std::string& file, const std::string& name,
                         std::span<const int64_t> want, std::span<const int64_t> got) {
  hasher_.Add(got);
  GoldenCheck check{.file = file, .tensor = name};
  for (size_t i = 0; i < std::max(want.size(), got.size()); ++i) {
    if (i < want.size() && i < got.size() && want[i] == got[i]) continue;
    if (check.ok) check.at = {static_cast<int64_t>(i)};
    check.ok = false;
    check.error += 1;
  }
  Add(std::move(check));
}

void GoldenReport::Levels(const std::string& file, const StoredTensor& want,
                          std::span<const uint8_t> got, double share) {
  hasher_.Add(got);
  if (want.type != StoredType::kU8 || want.bytes.size() != got.size()) {
    return Fail(file, want.name, fmt::format("{} values, golden {}", got.size(), want.ShapeText()));
  }
  GoldenCheck check{.file = file, .tensor = want.name, .tolerance = share};
  int worst = 0;
  int64_t off = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    const int difference = std::abs(int{got[i]} - static_cast<int>(want.bytes[i]));
    off += difference != 0 ? 1 : 0;
    if (difference > worst) {
      worst = difference;
      check.at = Coordinates(static_cast<int64_t>(i), want.shape);
    }
  }
  check.error = static_cast<double>(off) / static_cast<double>(std::max<size_t>(got.size(), 1));
  check.ok = worst <= 1 && check.error <= share;
  if (worst > 1)
    check.note = fmt::format("{} levels off at [{}]", worst, fmt::join(check.at, ", "));
  Add(std::move(check));
}

void GoldenReport::Fail(const std::string& file, const std::string& tensor,
                        const std::string& why) {
  Add({.file = file, .tensor = tensor, .error = kInfinity, .note = why, .ok = false});
}

void GoldenReport::Skip(const std::string& file, const std::string& tensor) {
  skipped_.push_back({.file = file, .tensor = tensor});
}

bool GoldenReport::Ok() const {
  return std::all_of(checks_.begin(), checks_.end(), [](const GoldenCheck& c) { return c.ok; });
}

int64_t GoldenReport::ChecksOf(const std::string& file) const {
  return std::count_if(checks_.begin(), checks_.end(),
                       [&](const GoldenCheck& check) { return check.file == file; });
}

std::vector<const GoldenCheck*> GoldenReport::Shown() const {
  std::vector<std::string> files;  // in the order in which they were looked at
  std::map<std::string, std::vector<const GoldenCheck*>> by_file;
  for (const GoldenCheck& check : checks_) {
    auto& checks = by_file[check.file];
    if (checks.empty()) files.push_back(check.file);
    checks.push_back(&check);
  }
  std::vector<const GoldenCheck*> shown;
  for (const std::string& file : files) {
    auto& checks = by_file[file];
    std::stable_sort(checks.begin(), checks.end(), [](const GoldenCheck* a, const GoldenCheck* b) {
      return a->Severity() > b->Severity();
    });
    for (size_t i = 0; i < checks.size() && (i == 0 || !checks[i]->ok); ++i) {
      shown.push_back(checks[i]);
    }
  }
  return shown;
}

std::string GoldenReport::ToText(const Terminal& terminal) const {
  Table table(
      {{"file"}, {"checks"}, {"worst_tensor"}, {"error"}, {"tolerance"}, {"at"}, {"verdict"}});
  for (const GoldenCheck* check : Shown()) {
    table.Add({check->file, ChecksOf(check->file), check->tensor, NumberCell(check->error),
               NumberCell(check->tolerance), AtText(*check), check->ok ? "ok" : "FAILED"});
  }
  std::string text = table.ToText(terminal);
  for (const GoldenCheck& check : skipped_) {
    text += terminal.Dim(fmt::format("not compared: {} of {}\n", check.tensor, check.file));
  }
  return text;
}

Json GoldenReport::ToJson() const {
  Json files = Json::array();
  for (const GoldenCheck* check : Shown()) {
    Json entry = {{"file", check->file}, {"tensor", check->tensor}};
    entry["error"] = std::isfinite(check->error) ? Json(check->error) : Json(nullptr);
    entry["tolerance"] = check->tolerance;
    entry["at"] = check->at;
    entry["ok"] = check->ok;
    entry["checks"] = ChecksOf(check->file);
    if (!check->note.empty()) entry["note"] = check->note;
    files.push_back(std::move(entry));
  }
  Json skipped = Json::array();
  for (const GoldenCheck& check : skipped_) {
    skipped.push_back({{"file", check.file}, {"tensor", check.tensor}});
  }
  return {{"ok", Ok()},
          {"checks", checks_.size()},
          {"digest", fmt::format("{:016x}", Digest())},
          {"files", std::move(files)},
          {"skipped", std::move(skipped)}};
}

}  // namespace equitile
