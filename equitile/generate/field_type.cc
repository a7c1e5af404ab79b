#include "equitile/generate/field_type.h"

#include <fmt/format.h>

#include <filesystem>

#include "equitile/base/error.h"

namespace equitile {

std::string FieldType::Checked(std::string_view what, std::string_view text) const {
  return check ? check(what, text) : std::string(text);
}

std::string FieldType::Identity(std::string_view text) const {
  return identity ? identity(text) : std::string(text);
}

std::string FieldType::Stored(std::string_view text) const {
  return stored ? stored(text) : std::string(text);
}

FieldType WholeNumber(Bounds<int64_t> bounds) {
  FieldType type{.kind = FieldKind::kInteger, .placeholder = "N"};
  type.check = [bounds](std::string_view what, std::string_view text) {
    return fmt::format("{}", ParseNumber(what, text, bounds));
  };
  return type;
}

FieldType RealNumber(Bounds<double> bounds) {
  FieldType type{.kind = FieldKind::kNumber, .placeholder = "X"};
  type.check = [bounds](std::string_view what, std::string_view text) {
    return fmt::format("{}", ParseNumber(what, text, bounds));
  };
  return type;
}

FieldType Switch() {
  FieldType type{.kind = FieldKind::kSwitch};
  type.check = [](std::string_view what, std::string_view text) {
    return ParseChoice(what, text, {"true", "false"});
  };
  return type;
}

FieldType Text(std::string placeholder) { return {.placeholder = std::move(placeholder)}; }

FieldType Word(std::vector<std::string> choices) {
  FieldType type{.placeholder = "WORD", .choices = std::move(choices)};
  type.check = [choices = type.choices](std::string_view what, std::string_view text) {
    return ParseChoice(what, text, choices);
  };
  return type;
}

FieldType Hash() {
  FieldType type = Text();
  type.check = [](std::string_view what, std::string_view text) {
    if (text.size() != 16 || text.find_first_not_of("0123456789abcdef") != text.npos) {
      throw InputError("{} {}: must be 16 hexadecimal digits", what, text);
    }
    return std::string(text);
  };
  return type;
}

FieldType OutputPath(std::string placeholder) {
  FieldType type = Text(std::move(placeholder));
  type.identity = [](std::string_view text) { return text.empty() ? "" : "given"; };
  return type;
}

FieldType InputPath(std::string placeholder) {
  FieldType type = OutputPath(std::move(placeholder));
  type.stored = [](std::string_view text) {
    std::error_code ignored;
    return text.empty() ? "" : std::filesystem::absolute(text, ignored).lexically_normal().string();
  };
  return type;
}

}  // namespace equitile
