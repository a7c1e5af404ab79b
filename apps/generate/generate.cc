// `equitile generate`: prompt -> video.
#include <errno.h>

#include <memory>

#include "apps/cli/commands.h"
#include "apps/cli/flags.h"
#include "apps/cli/shell_words.h"
#include "apps/generate/generate_dry_run.h"
#include "apps/generate/generate_flags.h"
#include "apps/generate/generate_run.h"
#include "equitile/base/error.h"

namespace equitile {
namespace {

constexpr const char* kExamples =
    "Examples:\n"
    "  equitile generate -p \"a red circle bounces on a black background\" -o circle.mp4\n"
    "  equitile generate -p \"a big yellow star grows\" -o star.mp4 -W 128 -H 128 --steps 10\n"
    "  equitile generate -p \"a blue ring orbits\" -o ring.webm --fps 24 --crf 30\n"
    "  equitile generate -p \"a white square grows\" -o square.mp4 --quality draft  # faster\n"
    "  equitile generate -p \"a green cross\" -o cross.png --video-frames 1  # a picture\n"
    "  equitile generate -p \"a big yellow star grows\" -o star.mp4 --resume  # after a crash\n"
    "  equitile generate --from circle.mp4 -o again.mp4  # the same bits again\n"
    "  equitile generate -m Wan2.1-T2V-1.3B-Diffusers --dry-run  # what it would cost\n"
    "  equitile generate --config slow.toml -p \"a white square grows\" -o square.mp4\n"
    "  mpirun -n 3 equitile generate -p \"a blue ring spins\" -o ring.mp4";

// The flags as they were given, except for --resume.
std::string GivenFlags(const CLI::App& app) {
  std::string text;
  for (const CLI::Option* option : app.get_options()) {
    if (option->count() == 0 || option->check_lname("resume")) continue;
    const std::string name = option->get_lnames().empty() ? "-" + option->get_snames().front()
                                                          : "--" + option->get_lnames().front();
    if (option->get_expected_max() == 0) {
      const bool negated = option->results().front() == "false";
      text += negated ? " --no-" + option->get_lnames().front() : " " + name;
      continue;
    }
    for (const std::string& value : option->results()) {
      text += " " + name + (value.starts_with("-") ? "=" : " ") + QuotedWord(value);
    }
  }
  return text;
}

// On as many ranks as the run would have.
void DryRun(const GenerateFlags& flags, const GenerateRequest& request) {
  const int32_t ranks = request.options.ranks;
  const RanksRequest on = RanksOf(flags, request);
  if (ranks > 0) return PrintDryRun(flags, request, ranks, ThreadsPerRank(on, ranks));
  RunOnRanks(on, [&](Communicator& comm, int threads) {
    if (comm.rank() == 0) PrintDryRun(flags, request, comm.size(), threads);
  });
}

}  // namespace

void RegisterGenerate(CLI::App& parent) {
  CLI::App& generate = AddCommand(parent, "generate", "a video from a prompt");
  auto flags = std::make_shared<GenerateFlags>();
  AddGenerateFlags(generate, *flags);
  generate.footer(kExamples);
  generate.callback([flags, &generate] {
    const std::string command =
        QuotedWord(program_invocation_name) + " generate" + GivenFlags(generate);
    CompleteFlags(generate, *flags);
    const GenerateRequest request = RequestOf(*flags);
    if (request.options.is_dry) return DryRun(*flags, request);
    RunGenerate(*flags, request, command);
  });
}

}  // namespace equitile
