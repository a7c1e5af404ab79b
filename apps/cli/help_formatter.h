// How --help looks: within 80 columns, for which CLI11 does not wrap.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace equitile {

class HelpFormatter : public CLI::Formatter {
 public:
  HelpFormatter();
  std::string make_description(const CLI::App* app) const override;
  std::string make_subcommand(const CLI::App* sub) const override;
  std::string make_option(const CLI::Option* option, bool is_positional) const override;
};

}  // namespace equitile
