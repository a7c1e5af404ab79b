#include "apps/cli/command_line.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <iostream>
#include <memory>
#include <new>
#include <set>
#include <string_view>
#include <thread>
#include <utility>

#include "apps/cli/commands.h"
#include "apps/cli/help_formatter.h"
#include "apps/cli/ranks.h"
#include "equitile/base/checked_value.h"
#include "equitile/base/error.h"
#include "equitile/base/version.h"
#include "equitile/comm/comm_error.h"
#include "equitile/comm/mpi/launch.h"
#include "equitile/kernel/target.h"

namespace equitile {
namespace {

constexpr const char* kHelp =
    "Balanced block-sparse attention for video diffusion transformers.\n"
    "Exit codes: 0 done; 1 failed, or a check is false; 2 what was given cannot be used.";

bool IsLongFlag(std::string_view arg) { return arg.size() > 2 && arg.starts_with("--"); }

std::string_view FlagName(std::string_view arg) { return arg.substr(0, arg.find('=')); }

// "--head_dim=64" -> "--head-dim=64"
std::string WithDashes(std::string arg) {
  const auto name_end = arg.begin() + static_cast<std::ptrdiff_t>(FlagName(arg).size());
  std::replace(arg.begin(), name_end, '_', '-');
  return arg;
}

// "--video-frames" -> "video", "frames"; not what stands in many, as "no" does.
std::set<std::string_view> PartsOf(std::string_view flag) {
  std::set<std::string_view> parts;
  while (!flag.empty()) {
    const size_t end = std::min(flag.find('-'), flag.size());
    if (end > 2) parts.insert(flag.substr(0, end));
    flag.remove_prefix(std::min(end + 1, flag.size()));
  }
  return parts;
}

// The shortest of those with the most parts in common with `wanted`: --frames for --video-frames.
// "": none has any.
std::string RelatedWord(std::string_view wanted, const std::vector<std::string>& words) {
  const std::set<std::string_view> parts = PartsOf(wanted);
  std::string related;
  int64_t most = 0;
  for (const std::string& word : words) {
    int64_t shared = 0;
    for (std::string_view part : PartsOf(word)) shared += parts.contains(part) ? 1 : 0;
    if (shared < most || shared == 0) continue;
    if (shared > most || word.size() < related.size()) related = word;
    most = shared;
  }
  return related;
}

// The shortest word that begins with `wanted`; "": none does.
std::string Completion(std::string_view wanted, const std::vector<std::string>& words) {
  std::string shortest;
  for (const std::string& word : words) {
    if (!word.starts_with(wanted)) continue;
    if (shortest.empty() || word.size() < shortest.size()) shortest = word;
  }
  return shortest;
}

// "; did you mean X?" for a word that is close to `wanted`, else "".
std::string Suggestion(std::string_view wanted, const std::vector<std::string>& words) {
  std::string word = Completion(wanted, words);
  if (word.empty()) word = NearestWord(wanted, words, std::max<size_t>(2, wanted.size() / 3));
  if (word.empty()) word = RelatedWord(wanted, words);
  return word.empty() ? "" : fmt::format("; did you mean {}?", word);
}

// Whoever adds a flag to a long line means it; CLI11 would complain.
void TakeLastOfRepeated(CLI::App& app) {
  for (CLI::Option* option : app.get_options()) {
    if (option->get_positional()) continue;
    if (option->get_multi_option_policy() == CLI::MultiOptionPolicy::Throw) {
      option->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
    }
  }
  for (CLI::App* command : app.get_subcommands({})) TakeLastOfRepeated(*command);
}

std::string CommandPath(const CLI::App& app) {
  return app.get_parent() == nullptr ? "equitile"
                                     : CommandPath(*app.get_parent()) + " " + app.get_name();
}

std::vector<std::string> LongFlags(const CLI::App& app) {
  std::vector<std::string> flags;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) flags.push_back("--" + name);
  }
  return flags;
}

std::vector<std::string> CommandNames(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands({})) names.push_back(command->get_name());
  return names;
}

// Where --help would say "Subcommands".
void CallThemCommands(CLI::App& app) {
  for (CLI::App* command : app.get_subcommands({})) {
    command->group("Commands");
    CallThemCommands(*command);
  }
}

// What is wrong with the arguments that CLI11 cannot say well: it would complain first about
// whatever else is missing, cannot suggest the right spelling, and takes a value like "--a b" for a
// flag.
class ArgumentWalk {
 public:
  ArgumentWalk(const CLI::App& root, std::vector<std::string> args)
      : command_(&root), args_(std::move(args)) {
    for (size_t i = 0; i < args_.size() && args_[i] != "--"; ++i) {
      if (IsLongFlag(args_[i])) {
        i += Flag(i, args_[i] = WithDashes(args_[i]));
      } else if (args_[i].starts_with("-") && args_[i].size() > 1) {
        i += ShortFlag(i);
      } else if (!args_[i].starts_with("-")) {
        Word(args_[i]);
      }
    }
    std::erase(args_, kJoined);
  }

  const CLI::App& command() const { return *command_; }  // that the arguments name
  const std::vector<std::string>& args() const { return args_; }

 private:
  // In the place of values that have joined their flags; no argument holds a zero byte.
  static inline const std::string kJoined{'\0'};

  // "-o", "-o=x.mp4", "-t4"
  size_t ShortFlag(size_t i) {
    const std::string name = args_[i].substr(0, 2);
    const CLI::Option* option = command_->get_option_no_throw(name);
    if (option == nullptr) {
      throw InputError("unknown flag {} (see {} --help)", name, CommandPath(*command_));
    }
    if (args_[i].size() == 2) return JoinValue(i, option);
    if (args_[i][2] != '=' || option->get_lnames().empty()) return 0;
    return Flag(i, args_[i] = fmt::format("--{}{}", option->get_lnames()[0], args_[i].substr(2)));
  }

  // How many more arguments it takes.
  size_t Flag(size_t i, const std::string& arg) {
    const std::string name(FlagName(arg));
    const CLI::Option* option = command_->get_option_no_throw(name);
    if (option == nullptr) {
      throw InputError("unknown flag {}{} (see {} --help)", name,
                       Suggestion(name, LongFlags(*command_)), CommandPath(*command_));
    }
    if (arg.size() == name.size()) return JoinValue(i, option);
    const std::string_view value = std::string_view(arg).substr(name.size() + 1);
    if (option->get_expected_max() == 0 && value != "true" && value != "false") {
      throw InputError("{} {}: must be true or false, or left out", name, value);
    }
    return 0;
  }

  size_t JoinValue(size_t i, const CLI::Option* option) {
    if (option == nullptr || option->get_expected_min() < 1 || i + 1 >= args_.size()) return 0;
    std::string& value = args_[i + 1];
    if (!value.starts_with("-") || value.size() < 2 || option->get_lnames().empty()) return 1;
    if (command_->get_option_no_throw(WithDashes(std::string(FlagName(value)))) != nullptr) {
      throw InputError("{}: a value is missing (see {} --help)", args_[i], CommandPath(*command_));
    }
    args_[i] = fmt::format("--{}={}", option->get_lnames().front(), value);
    value = kJoined;
    return 1;
  }

  void Word(const std::string& arg) {
    const std::vector<std::string> names = CommandNames(*command_);
    if (names.empty()) return;
    if (std::find(names.begin(), names.end(), arg) == names.end()) {
      throw InputError("unknown command '{}'{} (see {} --help)", arg, Suggestion(arg, names),
                       CommandPath(*command_));
    }
    command_ = command_->get_subcommand(arg);
  }

  const CLI::App* command_;
  std::vector<std::string> args_;
};

// CLI11's complaint, in the words that the rest of the program uses.
[[noreturn]] void Reword(const CLI::ParseError& error, const CLI::App& root,
                         const CLI::App& command) {
  const std::string text = error.what();
  const std::string hint = fmt::format("(see {} --help)", CommandPath(command));
  if (dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr) {
    throw InputError("unexpected argument {} {}", fmt::join(root.remaining(true), " "), hint);
  }
  if (dynamic_cast<const CLI::ArgumentMismatch*>(&error) != nullptr) {
    throw InputError("{}: a value is missing {}", text.substr(0, text.find(':')), hint);
  }
  const std::vector<std::string> names = CommandNames(command);
  if (dynamic_cast<const CLI::RequiredError*>(&error) != nullptr && !names.empty()) {
    throw InputError("which command? {} {}", fmt::join(names, ", "), hint);
  }
  throw InputError("{} {}", text, hint);
}

int ComplainAlways(int exit_code, std::string message) {
  std::replace(message.begin(), message.end(), '\n', ' ');
  fmt::print(stderr, "equitile: {}\n", message);
  return exit_code;
}

// What a launcher may take to end the others after one has ended badly, on a busy machine.
constexpr std::chrono::seconds kTimeOfLaunchers{5};

// Of the processes that a launcher started, all of which mostly go wrong alike, one complains. The
// others let it: a launcher ends all at the first bad exit code. Who is still there after that was
// alone with its trouble.
int Complain(int exit_code, std::string message) {
  if (IsFirstProcess()) return ComplainAlways(exit_code, std::move(message));
  if (mpi::InSimulator()) return exit_code;
  std::this_thread::sleep_for(kTimeOfLaunchers);
  return ComplainAlways(exit_code, fmt::format("rank {}: {}", *mpi::LaunchedRank(), message));
}

// In the simulator all ranks have the same one.
void SilenceStdout() {
  if (!mpi::InSimulator() && std::freopen("/dev/null", "w", stdout) == nullptr) {
    throw Error("/dev/null cannot be opened");
  }
}

}  // namespace

void ParseArguments(CLI::App& app, std::vector<std::string> args) {
  TakeLastOfRepeated(app);
  const ArgumentWalk walk(app, std::move(args));
  try {  // CLI11 wants them reversed
    app.parse(std::vector<std::string>(walk.args().rbegin(), walk.args().rend()));
  } catch (const CLI::Success& request) {  // --help, --version
    app.exit(request, std::cout, std::cerr);
    std::cout.flush();
  } catch (const CLI::ParseError& error) {
    Reword(error, app, walk.command());
  }
}

int ExitCodeOf(const std::function<void()>& work) {
  try {
    work();
    if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
      return Complain(kUnusable, "standard output cannot be written");
    }
    return kDone;
  } catch (const CommError& error) {  // thrown on one process only, which need not be the first
    return ComplainAlways(error.failure().kind == FailureKind::kUnusable ? kUnusable : kFailed,
                          error.what());
  } catch (const InputError& error) {
    return Complain(kUnusable, error.what());
  } catch (const std::bad_alloc&) {
    return Complain(kFailed, "out of memory");
  } catch (const std::exception& error) {
    return Complain(kFailed, error.what());
  }
}

int RunCommandLine(const std::vector<std::string>& args) {
  return ExitCodeOf([&] {
    if (!IsFirstProcess()) SilenceStdout();
    CLI::App app(kHelp, "equitile");
    app.set_version_flag("--version", std::string("equitile ") + Version());
    app.require_subcommand(1);
    app.parse_complete_callback(ApplyTargetFromEnvironment);  // after --help, before any command
    app.formatter(std::make_shared<HelpFormatter>());
#define EQUITILE_REGISTER(name) name(app);
    EQUITILE_COMMANDS(EQUITILE_REGISTER)
#undef EQUITILE_REGISTER
    CallThemCommands(app);
    app.footer(
        "equitile COMMAND --help shows the flags of one command, with examples.");  // not inherited
    ParseArguments(app, args);
  });
}

}  // namespace equitile
