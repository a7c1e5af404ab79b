#include "equitile/plan/planners/dbsp/dbsp_blocks.h"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <utility>

#include "equitile/plan/planners/dbsp/dbsp_ring_state.h"

namespace equitile {
namespace {

// Partners are looked at in strips of this many slots, whose sums stay in registers.
constexpr int64_t kLongStrip = BlockSide::kSpare, kShortStrip = 4;
// Partners of a block in one sweep: enough to find a good one, few enough that a sweep takes time
// linear in the blocks. Below about 200 blocks all of them are looked at, up to 16 ring ranks.
constexpr int64_t kPartners = 192;
// Labels whose slots are looked at for one block: all of them up to 16 ring ranks, then as many as
// keep labels · ring at about this.
constexpr int64_t kMostLabels = 15, kFewestLabels = 2, kLabelsTimesRing = 1024;
// Up to this many blocks all sweeps are made, beyond it as many as give the same number of tried
// blocks; with 1184 blocks a sixth of the sweeps moved 5 % more blocks and changed nothing else.
constexpr int64_t kFullSweepBlocks = 192;
// All searches together look at most this often at a partner in a stage, if a few sweeps allow it:
// around a tenth of a second.
constexpr int64_t kMostWork = 100'000'000;
constexpr int64_t kFewestSweeps = 3;
// Sweeps without noise that end a search; they stop earlier when nothing improves.
constexpr int64_t kGreedySweeps = 4;
// A swap has to pay at least this: not zero, so that rounding cannot make it go round in circles.
constexpr float kLeastGain = 1e-3f;
constexpr float kNothing = -std::numeric_limits<float>::infinity();

// Exponentially distributed noise, -ln(u) with the logarithm made of straight pieces: the same
// table with every compiler and every libm.
constexpr int64_t kNoiseCount = 4096;
constexpr std::array<float, kNoiseCount> MakeNoise() {
  std::array<float, kNoiseCount> noise{};
  uint64_t state = 1;
  for (float& value : noise) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    const uint32_t u = static_cast<uint32_t>(state >> 33) | 1;  // 31 bits
    const int zeros = std::countl_zero(u) - 1;
    const float fraction = static_cast<float>(u << (zeros + 2)) * 0x1p-32f;
    value = 0.69314718f * (static_cast<float>(zeros) + 1 - fraction);
  }
  return noise;
}
constexpr std::array<float, kNoiseCount> kNoise = MakeNoise();

class BlockSearch {
 public:
  BlockSearch(const BlockMask& mask, std::span<const int32_t> lanes, int64_t ring)
      : state_(mask, lanes, ring),
        ring_(ring),
        base_(state_.total() / (ring * ring)),
        labels_(
            std::min(ring - 1, std::clamp(kLabelsTimesRing / ring, kFewestLabels, kMostLabels))),
        most_partners_(std::max<int64_t>(4, kPartners / labels_)),
        cell_(static_cast<size_t>(ring * ring)),
        largest_(static_cast<size_t>(ring)),
        stages_(static_cast<size_t>(ring)),
        change_(static_cast<size_t>(std::max(state_.query().stride, state_.key().stride))) {}
  BlockPlan Run(const BlockSearchOptions& options);

 private:
  // One sweep minimises max(F, goal) + price·moved + smooth·(sum of squared cells), with noise.
  struct Sweep {
    float price = 0, smooth = 0, temperature = 0, goal = 0;
  };
  // One stage, seen from the block that looks for a partner.
  struct Stage {
    float own = 0, own_without = 0;  // the cell of the block's rank; without the block
    float other_with = 0;            // the cell of the partner's rank, with the block
    float largest = 0, second = 0;   // of the cells of all ranks but the block's
    int32_t largest_label = 0;
    float rest = 0;                   // the largest cell of neither rank
    const float* at_own = nullptr;    // [slots] what they keep in this stage at the block's rank
    const float* at_other = nullptr;  // and at the partner's
  };
  struct Largest {
    std::array<float, 3> cell;
    std::array<int32_t, 3> label;
  };
  struct Best {
    double value = 0;
    int64_t crit = 0, moved = 0;
    std::vector<int32_t> q_block, kv_block;  // by slot
  };

  Best Now(const BlockSearchOptions& options) const;
  bool Remember(const BlockSearchOptions& options, Best& best) const;
  int64_t FeasibleSweeps(const BlockSearchOptions& options) const;
  bool Anneal(const BlockSearchOptions& options, Best& best);
  bool SweepBoth(const Sweep& sweep);
  bool SweepSide(const BlockSide& side, const Sweep& sweep);
  void LoadStage(const BlockSide& side, int64_t stage);
  void LoadCells(const BlockSide& side);
  void ReloadCells(const BlockSide& side, int64_t a, int64_t b);
  void SumCrit();
  void LoadBlock(const BlockSide& side, int64_t slot);
  int64_t FindPartner(const BlockSide& side, int64_t slot, const Sweep& sweep);
  template <bool kSmooth, int64_t kStrip>
  void Evaluate(const BlockSide& side, int64_t slot, int64_t other, Range partners,
                const Sweep& sweep);
  uint32_t Random() {
    random_ = random_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<uint32_t>(random_ >> 33);
  }

  RingState state_;
  int64_t ring_;
  int64_t base_;                    // taken off every cell before it becomes a float
  int64_t labels_, most_partners_;  // looked at for one block; per label
  uint64_t random_ = 1;

  // Of the side being swept.
  std::vector<float> cell_;       // [label][stage]
  std::vector<Largest> largest_;  // [stage]
  float crit_ = 0;
  std::vector<Stage> stages_;  // [stage] of the block that looks for a partner
  std::vector<float> change_;  // [partners, rounded up to strips]
};

BlockSearch::Best BlockSearch::Now(const BlockSearchOptions& options) const {
  Best now;
  now.crit = state_.Crit();
  now.moved = state_.Moved();
  now.value = static_cast<double>(std::max(now.crit, options.goal)) +
              options.price * static_cast<double>(now.moved);
  return now;
}

// Keeps the present state if it is the best so far.
bool BlockSearch::Remember(const BlockSearchOptions& options, Best& best) const {
  Best now = Now(options);
  if (now.value >= best.value && !best.q_block.empty()) return false;
  now.q_block = state_.query().block;
  now.kv_block = state_.key().block;
  best = std::move(now);
  return true;
}

int64_t BlockSearch::FeasibleSweeps(const BlockSearchOptions& options) const {
  const int64_t blocks = std::max(state_.query().blocks, state_.key().blocks);
  const int64_t seen = std::min(most_partners_, CeilDiv(blocks, ring_));
  // A label costs about as much to set up as a long strip to look at; a swap touches all blocks.
  const int64_t strip = seen <= kShortStrip ? kShortStrip : kLongStrip;
  const int64_t per_block =
      labels_ * ring_ * (RoundUp(seen, strip) + kLongStrip) + 24 * ring_ + blocks;
  const int64_t per_sweep =
      (state_.query().blocks + state_.key().blocks) * per_block * options.searches;
  const int64_t enough = options.sweeps * kFullSweepBlocks / std::max(blocks, kFullSweepBlocks);
  return std::min(options.sweeps, std::max(kFewestSweeps, std::min(enough, kMostWork / per_sweep)));
}

void BlockSearch::LoadStage(const BlockSide& side, int64_t stage) {
  Largest& largest = largest_[static_cast<size_t>(stage)];
  largest.cell.fill(kNothing);
  largest.label.fill(-1);
  for (int64_t a = 0; a < ring_; ++a) {
    const float cell = static_cast<float>(state_.Cell(side, a, stage) - base_);
    cell_[static_cast<size_t>(a * ring_ + stage)] = cell;
    size_t k = 3;
    for (; k > 0 && cell > largest.cell[k - 1]; --k) {
      if (k == 3) continue;
      largest.cell[k] = largest.cell[k - 1];
      largest.label[k] = largest.label[k - 1];
    }
    if (k == 3) continue;
    largest.cell[k] = cell;
    largest.label[k] = static_cast<int32_t>(a);
  }
}

// Cells, the largest of every stage and F as the sweep of `side` needs them.
void BlockSearch::LoadCells(const BlockSide& side) {
  for (int64_t s = 0; s < ring_; ++s) LoadStage(side, s);
  SumCrit();
}

// The same after the cells of two labels have changed.
void BlockSearch::ReloadCells(const BlockSide& side, int64_t a, int64_t b) {
  for (int64_t s = 0; s < ring_; ++s) {
    const Largest& largest = largest_[static_cast<size_t>(s)];
    bool reload = false;
    for (int64_t label : {a, b}) {
      const float cell = static_cast<float>(state_.Cell(side, label, s) - base_);
      cell_[static_cast<size_t>(label * ring_ + s)] = cell;
      reload |= cell > largest.cell[2];
    }
    for (int32_t label : largest.label) reload |= label == a || label == b;
    if (reload) LoadStage(side, s);
  }
  SumCrit();
}

void BlockSearch::SumCrit() {
  crit_ = 0;
  for (const Largest& largest : largest_) crit_ += largest.cell[0];
}

// What does not depend on the partner.
void BlockSearch::LoadBlock(const BlockSide& side, int64_t slot) {
  const int64_t own = side.label[static_cast<size_t>(slot)];
  for (int64_t s = 0; s < ring_; ++s) {
    const Largest& largest = largest_[static_cast<size_t>(s)];
    const size_t first = largest.label[0] == own;
    const size_t second = first + 1 + (largest.label[first + 1] == own);
    Stage& stage = stages_[static_cast<size_t>(s)];
    stage.own = cell_[static_cast<size_t>(own * ring_ + s)];
    stage.at_own = side.CountAt((own + s) % ring_);
    stage.own_without = stage.own - stage.at_own[slot];
    stage.largest = largest.cell[first];
    stage.largest_label = largest.label[first];
    stage.second = second < 3 ? largest.cell[second] : kNothing;
  }
}

// change_[k]: what happens to the objective if the blocks in `slot` and in partners.begin + k, a
// slot of label `other`, change places. Fills whole strips.
template <bool kSmooth, int64_t kStrip>
void BlockSearch::Evaluate(const BlockSide& side, int64_t slot, int64_t other, Range partners,
                           const Sweep& sweep) {
  const int64_t own = side.label[static_cast<size_t>(slot)];
  float squares_before = 0;
  for (int64_t s = 0; s < ring_; ++s) {
    Stage& stage = stages_[static_cast<size_t>(s)];
    const float cell = cell_[static_cast<size_t>(other * ring_ + s)];
    stage.at_other = side.CountAt((other + s) % ring_);
    stage.other_with = cell + stage.at_other[slot];
    stage.rest = stage.largest_label == other ? stage.second : stage.largest;
    if (kSmooth) squares_before += stage.own * stage.own + cell * cell;
  }
  const int32_t own_label = static_cast<int32_t>(own), other_label = static_cast<int32_t>(other);
  const int32_t home = side.home[static_cast<size_t>(slot)];
  const int32_t leaves = (home != other_label) - (home != own_label);
  const float before = std::max(crit_, sweep.goal) + sweep.smooth * squares_before -
                       sweep.price * static_cast<float>(leaves);
  const float* noise = kNoise.data() + Random() % (kNoiseCount - kPartners - kLongStrip);
  for (int64_t begin = partners.begin; begin < partners.end; begin += kStrip, noise += kStrip) {
    float crit[kStrip] = {}, squares[kStrip] = {};
    for (const Stage& stage : stages_) {
      const float* at_own = stage.at_own + begin;
      const float* at_other = stage.at_other + begin;
      for (int64_t k = 0; k < kStrip; ++k) {
        const float u = stage.own_without + at_own[k], v = stage.other_with - at_other[k];
        const float uv = u > v ? u : v;
        crit[k] += uv > stage.rest ? uv : stage.rest;
        if (kSmooth) squares[k] += u * u + v * v;
      }
    }
    const int32_t* partner_home = side.home.data() + begin;
    float* change = change_.data() + (begin - partners.begin);
    for (int64_t k = 0; k < kStrip; ++k) {
      const int32_t moved = (partner_home[k] != own_label) - (partner_home[k] != other_label);
      float after = crit[k] > sweep.goal ? crit[k] : sweep.goal;
      if (kSmooth) after += sweep.smooth * squares[k];
      change[k] =
          after - before + sweep.price * static_cast<float>(moved) - sweep.temperature * noise[k];
    }
  }
}

// The slot whose block should change places with that of `slot`, or -1.
int64_t BlockSearch::FindPartner(const BlockSide& side, int64_t slot, const Sweep& sweep) {
  const int64_t own = side.label[static_cast<size_t>(slot)];
  LoadBlock(side, slot);
  float best = -kLeastGain - sweep.temperature * kNoise[Random() % kNoiseCount];
  int64_t partner = -1;
  // A run of labels after one's own; if it cannot be all of them the home and a run from anywhere.
  const bool all = labels_ == ring_ - 1;
  const int64_t start = all ? own : Random() % ring_;
  const int64_t home = side.home[static_cast<size_t>(slot)];
  for (int64_t n = 1; n <= labels_; ++n) {
    const int64_t other = !all && n == 1 ? home : (start + n) % ring_;
    if (other == own) continue;
    Range partners{side.begin[static_cast<size_t>(other)],
                   side.begin[static_cast<size_t>(other + 1)]};
    if (partners.size() > most_partners_) {
      partners.begin += Random() % (partners.size() - most_partners_ + 1);
      partners.end = partners.begin + most_partners_;
    }
    const bool few = partners.size() <= kShortStrip;
    if (sweep.smooth > 0) {
      few ? Evaluate<true, kShortStrip>(side, slot, other, partners, sweep)
          : Evaluate<true, kLongStrip>(side, slot, other, partners, sweep);
    } else {
      few ? Evaluate<false, kShortStrip>(side, slot, other, partners, sweep)
          : Evaluate<false, kLongStrip>(side, slot, other, partners, sweep);
    }
    for (int64_t k = 0; k < partners.size(); ++k) {
      if (change_[static_cast<size_t>(k)] < best) {
        best = change_[static_cast<size_t>(k)];
        partner = partners.begin + k;
      }
    }
  }
  return partner;
}

bool BlockSearch::SweepSide(const BlockSide& side, const Sweep& sweep) {
  bool swapped = false;
  LoadCells(side);
  for (int64_t slot = 0; slot < side.blocks; ++slot) {
    const int64_t partner = FindPartner(side, slot, sweep);
    if (partner < 0) continue;
    state_.Swap(side, slot, partner);
    ReloadCells(side, side.label[static_cast<size_t>(slot)],
                side.label[static_cast<size_t>(partner)]);
    swapped = true;
  }
  return swapped;
}

bool BlockSearch::SweepBoth(const Sweep& sweep) {
  const bool swapped = SweepSide(state_.query(), sweep);
  return SweepSide(state_.key(), sweep) || swapped;
}

// The price of a moved block falls from a share of a block's weight to the one that was asked for,
// so that the most useful moves are made first; the temperature follows the price. Where the goal
// is reached before, the price goes up again, which brings blocks home. The squared cells lead out
// of the plateaus of F at the start and are gone when it gets cold.
bool BlockSearch::Anneal(const BlockSearchOptions& options, Best& best) {
  // Found by trying on the stored masks: within a factor of two the results are the same.
  constexpr double kFirstPrice = 0.05;       // in weights of a mean block
  constexpr double kLeastPrice = 0.5;        // kept blocks
  constexpr double kHot = 0.3, kCold = 0.1;  // temperature in prices
  constexpr double kSmooth = 10;             // squared cells against F, about, at the start

  const double blocks = static_cast<double>(std::max(state_.query().blocks, state_.key().blocks));
  const double last_price = std::max(options.price, kLeastPrice);
  const double first_price =
      std::max(kFirstPrice * static_cast<double>(state_.total()) / blocks, last_price);
  const int64_t sweeps = FeasibleSweeps(options);
  const double tick = 1.0 / static_cast<double>(std::max<int64_t>(1, sweeps));
  double price_left = 1;
  bool at_best = true;
  for (int64_t k = 0; k < sweeps; ++k) {
    const double left = 1 - static_cast<double>(k) * tick;
    const double price =
        last_price + (first_price - last_price) * price_left * price_left * price_left;
    // F above its bound grows with the spread of the cells, their squares with its square.
    const double left3 = left * left * left;
    const double smooth =
        kSmooth * left3 * left3 / (static_cast<double>(ring_) * std::max(state_.CellSpread(), 1.0));
    SweepBoth({.price = static_cast<float>(price),
               .smooth = left > 0.35 ? static_cast<float>(smooth) : 0.0f,
               .temperature = static_cast<float>(price * (kCold + (kHot - kCold) * left)),
               .goal = static_cast<float>(options.goal - base_ * ring_)});
    at_best = Remember(options, best);
    const bool reached = state_.Crit() <= options.goal;
    price_left = reached ? std::min(1.0, price_left + tick) : std::max(0.0, price_left - tick);
  }
  return at_best;
}

BlockPlan BlockSearch::Run(const BlockSearchOptions& options) {
  Best best;
  Remember(options, best);
  if (best.crit > options.goal) {
    const bool at_best = Anneal(options, best);
    if (!at_best) state_.Place(best.q_block, best.kv_block);
    const Sweep greedy{.price = static_cast<float>(options.price),
                       .smooth = 0,
                       .temperature = 0,
                       .goal = static_cast<float>(options.goal - base_ * ring_)};
    const int64_t sweeps = std::min(kGreedySweeps, FeasibleSweeps(options));
    for (int64_t k = 0; k < sweeps && SweepBoth(greedy); ++k) Remember(options, best);
  }

  BlockPlan plan;
  plan.q_owner.resize(best.q_block.size());
  plan.kv_owner.resize(best.kv_block.size());
  for (size_t slot = 0; slot < best.q_block.size(); ++slot) {
    plan.q_owner[static_cast<size_t>(best.q_block[slot])] = state_.query().label[slot];
  }
  for (size_t slot = 0; slot < best.kv_block.size(); ++slot) {
    plan.kv_owner[static_cast<size_t>(best.kv_block[slot])] =
        static_cast<int32_t>(NegatedRank(state_.key().label[slot], ring_));
  }
  plan.crit = best.crit;
  plan.moved = best.moved;
  return plan;
}

}  // namespace

BlockPlan BalanceBlocks(const BlockMask& mask, std::span<const int32_t> lanes, int64_t ring,
                        const BlockSearchOptions& options) {
  if (ring == 1) {
    BlockPlan plan;
    plan.q_owner.assign(static_cast<size_t>(mask.QBlocks()), 0);
    plan.kv_owner.assign(static_cast<size_t>(mask.KvBlocks()), 0);
    for (int32_t lane : lanes) plan.crit += mask.LaneKept(lane);
    return plan;
  }
  return BlockSearch(mask, lanes, ring).Run(options);
}

}  // namespace equitile
