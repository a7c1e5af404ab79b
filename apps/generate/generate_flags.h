// What `equitile generate` was told on its command line, and the request that this makes.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <set>
#include <string>

#include "apps/cli/ranks.h"
#include "equitile/generate/recipe.h"
#include "equitile/generate/request.h"

namespace equitile {

// --quality, and the keys of the recipe that count more than it.
struct QualityFlag {
  std::string name;  // "": not given
  std::set<std::string> beside;
};

struct GenerateFlags {
  Recipe recipe;
  QualityFlag quality;
  RunOptions options;
  std::string from, config;
  std::optional<int64_t> ulysses_degree, ring_degree, checkpoint_every;
  bool json = false, verbose = false;
  RanksRequest ranks;
};

void AddGenerateFlags(CLI::App& app, GenerateFlags& flags);
// Those of them that say how a video is made, not which one and where to: for comparisons.
void AddMakingFlags(CLI::App& app, GenerateFlags& flags);

// When the arguments of an app with these flags are parsed: what --config adds to them, and which
// of them count more than --quality.
void CompleteFlags(CLI::App& app, GenerateFlags& flags);

// With all that --from, the environment and the model's folder add. Throws InputError as
// CheckedRequest does.
GenerateRequest RequestOf(const GenerateFlags& flags);

// The ranks that the request asks for: --from may ask for some, too.
RanksRequest RanksOf(const GenerateFlags& flags, const GenerateRequest& request);

// One line on stderr, from the first process.
void Remark(std::string_view line);

}  // namespace equitile
