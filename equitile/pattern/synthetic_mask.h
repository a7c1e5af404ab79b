// Masks without a model: drawn from a few numbers, the same bits on every machine, so that planners
// and kernels can be compared by name. They imitate what sparse video attention keeps; none comes
// from a model.
#pragma once

#include <cstdint>
#include <span>
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
  kProfile,   // as kWan, but every head as dense as a file says: MakeProfileMask
};

struct SyntheticSpec {
  SyntheticKind kind = SyntheticKind::kWan;
  int64_t heads = 40;
  int64_t blocks = 512;  // q and kv blocks, all of them full
  int64_t batch = 1;
  int64_t block_tokens = 64;
  int64_t density_ppm = 300'000;  // share of kept blocks in millionths, met within a few percent
  uint64_t seed = 1;
  std::string file;   // kProfile: the densities, [steps][layers][heads]
  int64_t step = 25;  // kProfile: counted from 1

  friend bool operator==(const SyntheticSpec&, const SyntheticSpec&) = default;
};

// "wan,heads=40,blocks=512,density=0.3,seed=1,batch=1,block=64": the kind first, then any of the
// keys. What is not given has the kind's default (DefaultSpec).
// "profile,file=FILE,step=25,blocks=512,seed=1,batch=1,block=64": heads and densities are the
// file's. Throws InputError.
SyntheticSpec ParseSyntheticSpec(std::string_view text);
SyntheticSpec DefaultSpec(SyntheticKind kind);
std::string SyntheticSpecText(const SyntheticSpec& spec);  // parses back to the same spec

// Every row keeps at least one block unless the density is 0. Throws InputError for sizes that are
// not a mask, and for kProfile, whose densities are not in the spec.
BlockMask MakeSyntheticMask(const SyntheticSpec& spec);

// One layer with a given density per head ([heads], in millionths), met within a few percent; every
// row keeps at least one block. Densities say nothing of which blocks a head keeps: they are drawn
// as for kWan, the head's family (diagonals, band, stripes, patches; noise above 0.85) by chance
// from seed, layer and head, its blocks around places of the video where much goes on.
BlockMask MakeProfileMask(const SyntheticSpec& spec, int64_t layer,
                          std::span<const int64_t> density_ppm);

// A mask on its way through the masks of seeds seed, seed + 1, ...: at position 2.25 every row is
// that of seed + 2, except one in four, which has changed to seed + 3. Rows change one after the
// other, in an order of their own; those of position p stay for p + a little.
BlockMask MakeDriftingMask(const SyntheticSpec& spec, double position);

}  // namespace equitile
