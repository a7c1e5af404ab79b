#include "apps/plan/plan_request.h"

#include <fmt/format.h>

#include <cstdio>

#include "apps/cli/flags.h"
#include "apps/cli/ranks.h"
#include "equitile/base/error.h"
#include "equitile/exec/wire.h"
#include "equitile/io/arrays/density_profile.h"
#include "equitile/io/records/machine_file.h"
#include "equitile/pattern/synthetic_mask.h"

namespace equitile {
namespace {

// The same blocks, each of `block` tokens: for masks that say nothing of tokens.
BlockMask WithBlock(const BlockMask& mask, int64_t block) {
  BlockMask other(mask.lanes(), {.q_tokens = mask.QBlocks() * block,
                                 .kv_tokens = mask.KvBlocks() * block,
                                 .block_tokens = block});
  std::copy(mask.Words().begin(), mask.Words().end(), other.MutableRow(0, 0).data());
  return other;
}

void ApplyBlock(int64_t block, MaskFile& mask) {
  const BlockGrid grid = mask.layers.front().grid();
  if (grid.block_tokens == block) return;
  const bool full =
      grid.q_tokens % grid.block_tokens == 0 && grid.kv_tokens % grid.block_tokens == 0;
  if (mask.grid || !full) {
    throw InputError("--block {}: the mask is for {} x {} tokens in blocks of {}", block,
                     grid.q_tokens, grid.kv_tokens, grid.block_tokens);
  }
  for (BlockMask& layer : mask.layers) layer = WithBlock(layer, block);
}

// One layer at all steps of a profile.
std::vector<BlockMask> ProfileSteps(const SyntheticSpec& spec, int64_t layer) {
  const DensityProfile profile = ReadDensityProfile(spec.file);
  if (layer >= profile.layers) {
    throw InputError("--layer {}: {} has {} layers, counted from 0", layer, spec.file,
                     profile.layers);
  }
  std::vector<BlockMask> steps;
  for (int64_t step = 0; step < profile.steps; ++step)
    steps.push_back(MakeProfileMask(spec, layer, profile.HeadsAt(step, layer)));
  return steps;
}

// All layers of one step of a profile.
std::vector<BlockMask> ProfileLayers(const SyntheticSpec& spec) {
  const DensityProfile profile = ReadDensityProfile(spec.file);
  if (spec.step > profile.steps) {
    throw InputError("--synthetic {}: step {}: {} has {} steps", SyntheticSpecText(spec), spec.step,
                     spec.file, profile.steps);
  }
  std::vector<BlockMask> layers;
  for (int64_t layer = 0; layer < profile.layers; ++layer)
    layers.push_back(MakeProfileMask(spec, layer, profile.HeadsAt(spec.step - 1, layer)));
  return layers;
}

MaskFile InHomeOrder(std::vector<BlockMask> layers, bool has_layer_axis) {
  MaskFile mask;
  mask.layers = std::move(layers);
  mask.has_layer_axis = has_layer_axis;
  mask.orders.assign(static_cast<size_t>(mask.lanes().Count()), TokenOrder::kFHW);
  return mask;
}

MaskFile Synthetic(const std::string& text) {
  const SyntheticSpec spec = ParseSyntheticSpec(text);
  if (spec.kind == SyntheticKind::kProfile) return InHomeOrder(ProfileLayers(spec), true);
  return InHomeOrder({MakeSyntheticMask(spec)}, false);
}

MaskFile AsAsked(const PlanFlags& flags, MaskFile mask) {
  if (flags.block) ApplyBlock(*flags.block, mask);
  return flags.batch ? WithBatch(mask, *flags.batch) : mask;
}

}  // namespace

void AddPlanFlags(CLI::App& app, PlanFlags& flags) {
  app.add_option("--mask", flags.mask,
                 "a mask: .npy, with the .json beside it if there is one; or a folder of them")
      ->type_name("FILE");
  app.add_option(
         "--synthetic", flags.synthetic,
         "a mask without a file: "
         "wan|uniform|banded|one-dense|headline,heads=40,blocks=512,density=0.3,seed=1; "
         "or with the head densities of a model: profile,file=FILE,step=25,blocks=512,seed=1")
      ->type_name("SPEC");
  AddNumber(app, "--for-ranks", flags.ranks, {.min = 1, .max = 1 << 20},
            "plan for this many ranks");
  app.add_option(
         "--planner", flags.planners,
         "comma list of ulysses, ring, usp:UxR, dbsp:UxR, dbsp+:UxR, fractional, dbsp:auto, "
         "auto; or all")
      ->capture_default_str();
  AddNumber(app, "--head-dim", flags.head_dim, {.min = 1, .max = 1 << 16},
            "values per token and head");
  AddChoice(app, "--compute", flags.compute, {"f32", "int16", "int8"},
            "arithmetic of attention: its rates, and what travels");
  AddNumber(app, "--block", flags.block, {.min = kMinBlockTokens, .max = kMaxBlockTokens},
            "tokens per block, for a mask that does not say; default: 64");
  AddNumber(app, "--batch", flags.batch, {.min = 1, .max = 1 << 16},
            "batch items; a mask of one is repeated");
  AddNumber(app, "--layer", flags.layer, {.min = 0},
            "one layer of a mask with several (counted from 0)");
  AddNumber(app, "--reward", flags.reward, {.min = 0, .max = 1e9},
            "dbsp: how strongly a block stays at home");
  AddChoice(app, "--dbsp-blocks", flags.dbsp_blocks, {"greedy", "swap"},
            "dbsp: how blocks are dealt out");
  AddChoice(app, "--dbsp-head-order", flags.dbsp_head_order, {"assignment", "weight"},
            "dbsp: order of heads inside a group");
  AddChoice(app, "--dbsp-balance", flags.dbsp_balance, {"heads", "blocks", "both"},
            "dbsp: what is balanced");
  app.add_flag("--reproducible,!--no-reproducible", flags.reproducible,
               "auto: only layouts whose result does not depend on the number of ranks (default)");
  app.add_option("--machine", flags.machine, "rates measured by `equitile bench machine --out`")
      ->type_name("FILE");
  AddNumber(app, "--kernel-gflops", flags.kernel_gflops, {.min = 1e-9, .max = 1e12},
            "attention rate of one rank; default: 100");
  app.add_option("--link", flags.link, "bandwidth and latency between ranks; default: 100Gb/s,2us")
      ->type_name("LINK");
  AddNumber(app, "--node-size", flags.node_size, {.min = 0, .max = 1 << 20},
            "ranks per node; default: what the machine file or the running job says");
  app.add_option("--node-link", flags.node_link, "the link inside a node")->type_name("LINK");
  app.add_option("--cable", flags.cable,
                 "what all ranks of a node share between nodes, like 10Gb/s; default: no limit")
      ->type_name("BANDWIDTH");
  AddNumbers(app, "--speeds", flags.speeds, {.min = 1e-9, .max = 1e9},
             "relative speed of each rank: 1,1,0.5,1");
}

bool IsFolder(const PlanFlags& flags) {
  std::error_code ignored;
  return std::filesystem::is_directory(flags.mask, ignored) && flags.synthetic.empty();
}

std::string SourceOf(const PlanFlags& flags) {
  return flags.mask.empty() ? flags.synthetic : flags.mask;
}

MaskFile MaskOf(const PlanFlags& flags) {
  if (flags.mask.empty() == flags.synthetic.empty()) {
    throw InputError("give one of --mask FILE and --synthetic SPEC");
  }
  MaskFile mask =
      AsAsked(flags, flags.mask.empty() ? Synthetic(flags.synthetic) : ReadMaskFile(flags.mask));
  const int64_t layers = std::ssize(mask.layers);
  if (flags.layer && *flags.layer >= layers) {
    throw InputError("--layer {}: {} has {} layer{}, counted from 0", *flags.layer, SourceOf(flags),
                     layers, layers == 1 ? "" : "s");
  }
  return mask;
}

MaskFile StepsOf(const PlanFlags& flags) {
  const bool synthetic = flags.mask.empty() && !flags.synthetic.empty();
  if (!synthetic || ParseSyntheticSpec(flags.synthetic).kind != SyntheticKind::kProfile)
    return MaskOf(flags);
  const SyntheticSpec spec = ParseSyntheticSpec(flags.synthetic);
  return AsAsked(flags, InHomeOrder(ProfileSteps(spec, flags.layer.value_or(0)), true));
}

PlanOptions OptionsOf(const PlanFlags& flags, const BlockGrid& grid) {
  if (!flags.ranks) throw InputError("--for-ranks N is missing: how many ranks to plan for");
  PlanOptions options;
  options.ranks = static_cast<int32_t>(*flags.ranks);
  options.reproducible = flags.reproducible;
  options.dbsp.reward = flags.reward;
  options.dbsp.blocks = flags.dbsp_blocks == "swap" ? DbspBlocks::kSwap : DbspBlocks::kBiasedGreedy;
  options.dbsp.head_order =
      flags.dbsp_head_order == "weight" ? DbspHeadOrder::kWeight : DbspHeadOrder::kAssignment;
  options.dbsp.balance = flags.dbsp_balance == "heads"    ? DbspBalance::kHeads
                         : flags.dbsp_balance == "blocks" ? DbspBalance::kBlocks
                                                          : DbspBalance::kBoth;
  Cluster& cluster = options.cluster;
  cluster.wire = WireFormatOf(flags.head_dim, DType::kF32, ParseCompute(flags.compute));
  if (!flags.machine.empty()) {
    const Machine machine = ReadMachineFile(flags.machine);
    if (const std::string missing = MissingRates(machine, flags.machine, flags.compute);
        !missing.empty() && IsFirstProcess()) {
      fmt::print(stderr, "equitile: {}\n", missing);
    }
    ApplyMachine(machine, grid, options, flags.compute);
    if (std::ssize(machine.node_of) == options.ranks) SetNodes(machine.node_of, cluster);
  }
  if (flags.kernel_gflops) cluster.gflops = *flags.kernel_gflops;
  if (!flags.link.empty()) cluster.link = ParseLink(flags.link);
  if (!flags.node_link.empty()) cluster.node_link = ParseLink(flags.node_link);
  if (!flags.cable.empty()) cluster.cable_bytes_per_second = ParseBandwidth(flags.cable);
  if (!flags.node_of.empty()) SetNodes(flags.node_of, cluster);
  if (flags.node_size > 0)
    cluster.node_of = EvenNodes(options.ranks, static_cast<int32_t>(flags.node_size));
  if (cluster.node_of.empty() && !(flags.node_link.empty() && flags.cable.empty()))
    throw InputError("--node-link and --cable need --node-size");
  cluster.speeds = flags.speeds;
  CheckCluster(cluster, options.ranks);
  if (!flags.machine.empty()) options.cost = CostInPicoseconds(cluster, grid);  // as changed since
  return options;
}

}  // namespace equitile
