#include "equitile/io/arrays/npy.h"

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <optional>
#include <string>

#include "equitile/base/error.h"
#include "equitile/base/range.h"
#include "equitile/io/atomic_write.h"
#include "equitile/io/mapped_file.h"

namespace equitile {
namespace {

static_assert(std::endian::native == std::endian::little,
              "elements are copied as they lie in the file");

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr size_t kPreludeBytes = 8;  // the magic and two version bytes

struct TypeFacts {
  NpyType type;
  std::string_view name, descr;
  int64_t bytes;
};
constexpr std::array<TypeFacts, 5> kTypes = {{{NpyType::kBool, "bool", "|b1", 1},
                                              {NpyType::kUint8, "uint8", "|u1", 1},
                                              {NpyType::kFloat16, "float16", "<f2", 2},
                                              {NpyType::kFloat32, "float32", "<f4", 4},
                                              {NpyType::kInt64, "int64", "<i8", 8}}};
const TypeFacts& Facts(NpyType type) { return kTypes[static_cast<size_t>(type)]; }

std::string_view AsText(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// Reads the header's Python dict: {'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }
class DictParser {
 public:
  DictParser(std::string_view text, std::string_view name, std::string_view needed)
      : rest_(text), name_(name), needed_(needed) {}

  struct Fields {
    std::optional<std::string> descr;
    std::optional<bool> fortran_order;
    std::optional<std::vector<int64_t>> shape;
  };

  Fields Parse() {
    Fields fields;
    Expect('{');
    while (!Accept('}')) {
      const std::string key = QuotedText();
      Expect(':');
      if (key == "descr" && !fields.descr) {
        fields.descr = Descr();
      } else if (key == "fortran_order" && !fields.fortran_order) {
        fields.fortran_order = Boolean();
      } else if (key == "shape" && !fields.shape) {
        fields.shape = Shape();
      } else {
        Fail();
      }
      if (!Accept(',')) {
        Expect('}');
        break;
      }
    }
    SkipBlanks();
    if (!rest_.empty() || !fields.descr || !fields.fortran_order || !fields.shape) Fail();
    return fields;
  }

 private:
  [[noreturn]] void Fail() const {
    throw InputError(
        "[io] {}: malformed .npy header; it should hold exactly 'descr', 'fortran_order' and "
        "'shape'",
        name_);
  }

  void SkipBlanks() {
    const size_t blanks = rest_.find_first_not_of(" \t\r\n");
    rest_.remove_prefix(std::min(blanks, rest_.size()));
  }

  bool Accept(char wanted) {
    SkipBlanks();
    if (rest_.empty() || rest_.front() != wanted) return false;
    rest_.remove_prefix(1);
    return true;
  }

  void Expect(char wanted) {
    if (!Accept(wanted)) Fail();
  }

  std::string QuotedText() {
    SkipBlanks();
    if (rest_.empty() || (rest_.front() != '\'' && rest_.front() != '"')) Fail();
    const size_t end = rest_.find(rest_.front(), 1);
    if (end == rest_.npos) Fail();
    std::string text(rest_.substr(1, end - 1));
    rest_.remove_prefix(end + 1);
    return text;
  }

  std::string Descr() {
    SkipBlanks();
    if (rest_.starts_with('[')) {
      throw InputError("[io] {}: an array of records; {}", name_, needed_);
    }
    return QuotedText();
  }

  bool Boolean() {
    SkipBlanks();
    for (const auto& [word, value] : {std::pair{"True", true}, {"False", false}}) {
      if (rest_.starts_with(word)) {
        rest_.remove_prefix(std::string_view(word).size());
        return value;
      }
    }
    Fail();
  }

  std::vector<int64_t> Shape() {
    std::vector<int64_t> shape;
    Expect('(');
    while (!Accept(')')) {
      SkipBlanks();
      int64_t extent = 0;
      const auto [end, error] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), extent);
      if (error != std::errc() || extent < 0) Fail();
      rest_.remove_prefix(static_cast<size_t>(end - rest_.data()));
      if (rest_.starts_with('L')) rest_.remove_prefix(1);  // written by Python 2
      shape.push_back(extent);
      if (!Accept(',')) {
        Expect(')');
        break;
      }
    }
    return shape;
  }

  std::string_view rest_;
  std::string_view name_, needed_;
};

// Number of elements, or nothing when it does not fit.
std::optional<int64_t> CountOf(std::span<const int64_t> shape) {
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return 0;
  int64_t count = 1;
  for (int64_t extent : shape) {
    if (__builtin_mul_overflow(count, extent, &count)) return std::nullopt;
  }
  return count;
}

NpyType TypeOf(const std::string& descr, std::string_view name, std::string_view needed) {
  for (const TypeFacts& facts : kTypes) {
    if (facts.descr == descr) return facts.type;
  }
  throw InputError("[io] {}: elements of type '{}'; {}", name, descr, needed);
}

// Little-endian, as the format prescribes.
size_t LengthField(std::span<const std::byte> bytes) {
  size_t length = 0;
  for (size_t i = bytes.size(); i-- > 0;) length = length << 8 | std::to_integer<size_t>(bytes[i]);
  return length;
}

// The dict's text: what lies between the length field and data_offset.
std::span<const std::byte> HeaderText(std::span<const std::byte> file, std::string_view name) {
  if (!AsText(file).starts_with(kMagic)) throw InputError("[io] {}: not a .npy file", name);
  if (file.size() < kPreludeBytes) throw InputError("[io] {}: truncated within the header", name);
  const int major = std::to_integer<int>(file[6]);
  const int minor = std::to_integer<int>(file[7]);
  if (major < 1 || major > 3 || minor != 0) {
    throw InputError("[io] {}: .npy format {}.{}; 1.0, 2.0 or 3.0 is needed", name, major, minor);
  }
  const size_t field_bytes = major == 1 ? 2 : 4;
  if (file.size() < kPreludeBytes + field_bytes)
    throw InputError("[io] {}: truncated within the header", name);
  const size_t length = LengthField(file.subspan(kPreludeBytes, field_bytes));
  const auto rest = file.subspan(kPreludeBytes + field_bytes);
  if (rest.size() < length) throw InputError("[io] {}: truncated within the header", name);
  return rest.first(length);
}

}  // namespace

std::string_view NpyTypeName(NpyType type) { return Facts(type).name; }
int64_t NpyTypeBytes(NpyType type) { return Facts(type).bytes; }

int64_t NpyHeader::Count() const {
  const std::optional<int64_t> count = CountOf(shape);
  EQ_CHECK(count.has_value());
  return *count;
}

NpyHeader ParseNpyHeader(std::span<const std::byte> file, std::string_view name,
                         std::string_view needed) {
  const auto text = HeaderText(file, name);
  const DictParser::Fields fields = DictParser(AsText(text), name, needed).Parse();

  NpyHeader header{.type = TypeOf(*fields.descr, name, needed), .shape = *fields.shape};
  header.data_offset = static_cast<size_t>(text.data() + text.size() - file.data());
  const size_t data_bytes = file.size() - header.data_offset;

  const std::optional<int64_t> count = CountOf(header.shape);
  int64_t wanted = 0;
  if (!count || __builtin_mul_overflow(*count, NpyTypeBytes(header.type), &wanted) ||
      static_cast<size_t>(wanted) > data_bytes) {
    throw InputError(
        "[io] {}: truncated: shape ({}) of {} needs more than the {} bytes that follow the header",
        name, fmt::join(header.shape, ", "), NpyTypeName(header.type), data_bytes);
  }
  if (static_cast<size_t>(wanted) < data_bytes) {
    throw InputError("[io] {}: {} bytes too many: shape ({}) of {} needs {}", name,
                     data_bytes - static_cast<size_t>(wanted), fmt::join(header.shape, ", "),
                     NpyTypeName(header.type), wanted);
  }
  const auto longer_than_one =
      std::count_if(header.shape.begin(), header.shape.end(), [](int64_t n) { return n > 1; });
  if (*fields.fortran_order && longer_than_one > 1) {
    throw InputError("[io] {}: Fortran order; save numpy.ascontiguousarray(array) instead", name);
  }
  return header;
}

NpyArray ReadNpy(const std::filesystem::path& path) {
  const MappedFile file(path);
  const NpyHeader header = ParseNpyHeader(file.bytes(), path.string());
  const auto data = file.bytes().subspan(header.data_offset);
  return {header.type, header.shape, {data.begin(), data.end()}};
}

void WriteNpy(const std::filesystem::path& path, NpyType type, std::span<const int64_t> shape,
              std::span<const std::byte> data) {
  const std::optional<int64_t> count = CountOf(shape);
  EQ_CHECK(count && *count * NpyTypeBytes(type) == static_cast<int64_t>(data.size()),
           "{} bytes of data for shape ({})", data.size(), fmt::join(shape, ", "));
  std::string dict =
      fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': ({}{}), }}", Facts(type).descr,
                  fmt::join(shape, ", "), shape.size() == 1 ? "," : "");
  // Blanks and a newline, so that the elements start at a multiple of 64 bytes.
  constexpr int64_t kAlignment = 64;
  const auto used = static_cast<int64_t>(kPreludeBytes + 2 + dict.size() + 1);
  dict.append(static_cast<size_t>(RoundUp(used, kAlignment) - used), ' ');
  dict += '\n';
  EQ_CHECK(dict.size() < 65536);  // the length field of format 1.0

  std::string header(kMagic);
  header +=
      {'\x01', '\x00', static_cast<char>(dict.size() & 0xFF), static_cast<char>(dict.size() >> 8)};
  header += dict;
  WriteFileAtomically(path, {std::as_bytes(std::span(header)), data});
}

}  // namespace equitile
