#include "apps/cli/flags.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <string_view>

namespace equitile {
namespace {

std::vector<std::string_view> SplitAtCommas(std::string_view text) {
  std::vector<std::string_view> parts;
  for (size_t comma; (comma = text.find(',')) != std::string_view::npos;
       text.remove_prefix(comma + 1)) {
    parts.push_back(text.substr(0, comma));
  }
  parts.push_back(text);
  return parts;
}

// "-t,--threads" -> "--threads": how messages call the flag.
std::string SpokenName(const std::string& name) {
  const size_t begin = name.find("--");
  return begin == name.npos ? name : name.substr(begin, name.find(',', begin) - begin);
}

// `parse(flag, text)` gives one value; a flag of lists is that of one value, part by part.
template <typename Value, typename Parse>
CLI::Option* AddOne(CLI::App& app, const std::string& name, Value& value, const std::string& help,
                    Parse parse) {
  const std::string flag = SpokenName(name);
  return app.add_option_function<std::string>(
      name, [&value, flag, parse](const std::string& text) { value = parse(flag, text); }, help);
}

template <typename Value, typename Parse>
CLI::Option* AddList(CLI::App& app, const std::string& name, std::vector<Value>& values,
                     const std::string& help, Parse parse) {
  const std::string flag = SpokenName(name);
  return app
      .add_option_function<std::string>(
          name,
          [&values, flag, parse](const std::string& text) {
            values.clear();
            for (std::string_view part : SplitAtCommas(text)) values.push_back(parse(flag, part));
          },
          help)
      ->default_str(fmt::format("{}", fmt::join(values, ",")));
}

template <typename Number>
auto NumberParser(Bounds<Number> bounds) {
  return [bounds](const std::string& flag, std::string_view text) {
    return ParseNumber(flag, text, bounds);
  };
}

auto ChoiceParser(const std::vector<std::string>& choices) {
  return [choices](const std::string& flag, std::string_view text) {
    return ParseChoice(flag, text, choices);
  };
}

std::string WithChoices(const std::string& help, const std::vector<std::string>& choices) {
  return fmt::format("{}: {}", help, fmt::join(choices, ", "));
}

}  // namespace

CLI::App& AddCommand(CLI::App& parent, const std::string& name, const std::string& help) {
  return *parent.add_subcommand(name, help);
}

CLI::Option* AddNumber(CLI::App& app, const std::string& name, int64_t& value,
                       Bounds<int64_t> bounds, const std::string& help) {
  return AddOne(app, name, value, help, NumberParser(bounds))
      ->type_name("N")
      ->default_str(fmt::format("{}", value));
}

CLI::Option* AddNumber(CLI::App& app, const std::string& name, std::optional<int64_t>& value,
                       Bounds<int64_t> bounds, const std::string& help) {
  return AddOne(app, name, value, help, NumberParser(bounds))->type_name("N");
}

CLI::Option* AddNumber(CLI::App& app, const std::string& name, double& value, Bounds<double> bounds,
                       const std::string& help) {
  return AddOne(app, name, value, help, NumberParser(bounds))
      ->type_name("X")
      ->default_str(fmt::format("{}", value));
}

CLI::Option* AddNumber(CLI::App& app, const std::string& name, std::optional<double>& value,
                       Bounds<double> bounds, const std::string& help) {
  return AddOne(app, name, value, help, NumberParser(bounds))->type_name("X");
}

CLI::Option* AddChoice(CLI::App& app, const std::string& name, std::optional<std::string>& value,
                       const std::vector<std::string>& choices, const std::string& help) {
  return AddOne(app, name, value, WithChoices(help, choices), ChoiceParser(choices))
      ->type_name("WORD");
}

CLI::Option* AddChoice(CLI::App& app, const std::string& name, std::string& value,
                       const std::vector<std::string>& choices, const std::string& help) {
  return AddOne(app, name, value, WithChoices(help, choices), ChoiceParser(choices))
      ->type_name("WORD")
      ->default_str(value);
}

CLI::Option* AddNumbers(CLI::App& app, const std::string& name, std::vector<int64_t>& values,
                        Bounds<int64_t> bounds, const std::string& help) {
  return AddList(app, name, values, help, NumberParser(bounds))->type_name("N,..");
}

CLI::Option* AddNumbers(CLI::App& app, const std::string& name, std::vector<double>& values,
                        Bounds<double> bounds, const std::string& help) {
  return AddList(app, name, values, help, NumberParser(bounds))->type_name("X,..");
}

CLI::Option* AddChoices(CLI::App& app, const std::string& name, std::vector<std::string>& values,
                        const std::vector<std::string>& choices, const std::string& help) {
  return AddList(app, name, values, WithChoices(help, choices), ChoiceParser(choices))
      ->type_name("WORD,..");
}

CLI::Option* AddJson(CLI::App& app, bool& json) {
  return app.add_flag("--json", json, "print JSON, and nothing else, on standard output");
}

}  // namespace equitile
