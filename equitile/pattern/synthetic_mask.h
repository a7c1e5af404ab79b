// Masks without a model: drawn from a few numbers, the same bits on every machine, so that planners
// and kernels can be compared by name. They imitate what sparse video attention keeps; none comes
// from a model.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "equitile/pattern/block_mask.h"

namespace equitile {

enum class SyntheticKind : uint8_t {
  kWan,      // bands, diagonals, stripes, patches, nearly dense heads; uneven as db-SP's table says
  kUniform,  // every block kept with the same probability
  kBanded,   // a band around the diagonal, equal for all heads
  kOneDense,  // one dense head among sparse bands
  kHeadline,  // as kWan, but much of the work in one region of the video and in a few heads
};

struct SyntheticSpec {
  SyntheticKind kind = SyntheticKind::kWan;
  int64_t heads = 40;
  int64_t blocks = 512;  // q and kv blocks, all of them full
  int64_t batch = 1;
  int64_t block_tokens = 64;
  int64_t density_ppm = 300'000;  // share of kept blocks in millionths, met within a few percent
  uint64_t seed = 1;

  friend bool operator==(const SyntheticSpec&, const SyntheticSpec&) = default;
};

// "wan,heads=40,blocks=512,density=0.3,seed=1,batch=1,block=64": the kind first, then any of the
// keys. What is not given has the kind's default (DefaultSpec). Throws InputError.
SyntheticSpec ParseSyntheticSpec(std::string_view text);
SyntheticSpec DefaultSpec(SyntheticKind kind);
std::string SyntheticSpecText(const SyntheticSpec& spec);  // parses back to the same spec

// Every row keeps at least one block unless the density is 0. Throws InputError for sizes that are
// not a mask.
BlockMask MakeSyntheticMask(const SyntheticSpec& spec);

// A mask on its way through the masks of seeds seed, seed + 1, ...: at position 2.25 every row is
// that of seed + 2, except one in four, which has changed to seed + 3. Rows change one after the
// other, in an order of their own; those of position p stay for p + a little.
BlockMask MakeDriftingMask(const SyntheticSpec& spec, double position);

}  // namespace equitile
