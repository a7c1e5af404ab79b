#include "equitile/pattern/synthetic_mask.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <numeric>
#include <vector>

#include "equitile/base/error.h"
#include "equitile/base/hash.h"
#include "equitile/pattern/synthetic_head.h"

namespace equitile {
namespace {

constexpr std::array<std::string_view, 6> kKindNames = {"wan",       "uniform",  "banded",
                                                        "one-dense", "headline", "profile"};
constexpr std::string_view kKeys = "heads, blocks, density, seed, batch, block";
constexpr std::string_view kProfileKeys = "file, step, blocks, seed, batch, block";
// A mask of this many bits takes 2 GiB; far above any model, and a typing error should not exhaust
// the machine.
constexpr int64_t kMostBits = int64_t{1} << 34;

int64_t ParseCount(std::string_view key, std::string_view value, int64_t least, int64_t most) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  if (error != std::errc() || end != value.data() + value.size() || number < least ||
      number > most) {
    throw InputError("[pattern] synthetic {}={}: must be a whole number from {} to {}", key, value,
                     least, most);
  }
  return number;
}

// Decimal digits rather than a float, so that 0.3 is the same everywhere.
int64_t ParseDensity(std::string_view value) {
  const auto bad = [&] {
    return InputError(
        "[pattern] synthetic density={}: must be a decimal from 0 to 1, at most six places", value);
  };
  const size_t point = std::min(value.find('.'), value.size());
  const std::string_view places =
      point < value.size() ? value.substr(point + 1) : std::string_view();
  const std::string digits = std::string(value.substr(0, point)) + std::string(places);
  const auto is_digit = [](char c) { return '0' <= c && c <= '9'; };
  if (digits.empty() || digits.size() > 12 || places.size() > 6 ||
      !std::all_of(digits.begin(), digits.end(), is_digit))
    throw bad();
  int64_t ppm = std::strtoll(digits.c_str(), nullptr, 10);
  for (size_t i = places.size(); i < 6; ++i) ppm *= 10;
  if (ppm > kDensityOne) throw bad();
  return ppm;
}

void CheckSpec(const SyntheticSpec& spec) {
  CheckBlockGrid(
      {spec.blocks * spec.block_tokens, spec.blocks * spec.block_tokens, spec.block_tokens});
  if (spec.heads <= 0 || spec.batch <= 0 || spec.density_ppm < 0 ||
      spec.density_ppm > kDensityOne) {
    throw InputError(
        "[pattern] synthetic mask of {} heads, batch {}, density {} millionths: heads and batch "
        "must be positive, density at most 1000000",
        spec.heads, spec.batch, spec.density_ppm);
  }
  if (spec.heads * spec.batch > kMostBits / spec.blocks / RoundUp(spec.blocks, 64)) {
    throw InputError(
        "[pattern] synthetic mask of {} x {} heads and {} blocks: too large; at most {} bits",
        spec.batch, spec.heads, spec.blocks, kMostBits);
  }
}

// A quiet video with `bumps` places where much is going on, as triangles; mean near kActivityOne.
VideoActivity DrawActivity(uint64_t seed, int64_t blocks, int64_t bumps, int64_t height,
                           int64_t places) {
  VideoActivity activity(static_cast<size_t>(blocks), 0);
  for (int64_t b = 0; b < bumps; ++b) {
    const uint64_t dice = DrawBits(seed, 20, static_cast<uint64_t>(b));
    // Anywhere in the middle half of one of `places` equal parts.
    const int64_t place = static_cast<int64_t>(dice >> 32) % places;
    const int64_t center = (place * kActivityOne + kActivityOne / 4 +
                            static_cast<int64_t>(dice % (kActivityOne / 2))) *
                           blocks / (places * kActivityOne);
    const int64_t half = std::max<int64_t>(1, blocks / 6);
    for (int64_t i = 0; i < blocks; ++i) {
      const int64_t away = std::abs(i - center);
      if (away < half) activity[static_cast<size_t>(i)] += height * (half - away) / half;
    }
  }
  const int64_t mean = std::accumulate(activity.begin(), activity.end(), int64_t{0}) / blocks;
  for (int64_t& a : activity) a = (a + kActivityOne) * kActivityOne / (mean + kActivityOne);
  return activity;
}

// Scales the densities to the wanted mean; none above `most`.
void ScaleDensities(std::vector<int64_t>& densities, int64_t mean_ppm, int64_t most) {
  most = std::max(most, mean_ppm);
  const int64_t wanted = mean_ppm * static_cast<int64_t>(densities.size());
  int64_t below = 0, above = int64_t{1} << 30;  // factor in 1/kActivityOne
  auto scaled = [&](int64_t density, int64_t factor) {
    return std::min(most, density * factor / kActivityOne);
  };
  while (above - below > 1) {
    const int64_t middle = (below + above) / 2;
    int64_t sum = 0;
    for (int64_t density : densities) sum += scaled(density, middle);
    (sum < wanted ? below : above) = middle;
  }
  for (int64_t& density : densities) density = scaled(density, above);
}

// Largest sum of `parts` contiguous parts over the mean, in thousandths.
int64_t Unevenness(const std::vector<int64_t>& densities, int64_t parts) {
  const int64_t heads = static_cast<int64_t>(densities.size());
  const int64_t total = std::accumulate(densities.begin(), densities.end(), int64_t{0});
  int64_t most = 0;
  for (int64_t part = 0; part < parts; ++part) {
    const Range range = EvenPart(heads, part, parts);
    most = std::max(most, std::accumulate(densities.begin() + range.begin,
                                          densities.begin() + range.end, int64_t{0}));
  }
  return total == 0 ? 1000 : most * parts * 1000 / total;
}

// Of some random orders the one whose contiguous parts are as uneven as wanted.
void ShuffleToUnevenness(std::vector<int64_t>& densities, uint64_t seed, int64_t parts,
                         int64_t wanted) {
  std::vector<int64_t> best = densities;
  for (uint64_t attempt = 0; attempt < 64; ++attempt) {
    for (size_t i = densities.size(); i > 1; --i) {
      std::swap(densities[i - 1], densities[DrawBits(seed, 30, attempt, i) % i]);
    }
    if (std::abs(Unevenness(densities, parts) - wanted) <
        std::abs(Unevenness(best, parts) - wanted))
      best = densities;
  }
  densities = best;
}

struct Style {
  int64_t bumps, bump_height;
  int64_t
      spread;  // exponent of the density distribution: more, and few heads hold most of the work
  int64_t dense_share;  // heads that are nearly dense, in sixteenths
  int64_t most_ppm;     // their density
  int64_t parts, unevenness;
};

// As dense as told; what they look like by chance.
std::vector<SyntheticHead> HeadsOfDensities(uint64_t seed, int64_t blocks,
                                            std::span<const int64_t> density_ppm) {
  std::vector<SyntheticHead> heads;
  for (size_t h = 0; h < density_ppm.size(); ++h) {
    const uint64_t dice = DrawBits(seed, 10, h);
    SyntheticHead head;
    head.density_ppm = density_ppm[h];
    head.seed = DrawBits(seed, 11, h);
    // Of sixteen heads six diagonals, five bands, three stripes, two patches: about what db-SP and
    // Sparse-vDiT show.
    constexpr std::array<HeadFamily, 16> kFamilies = {
        HeadFamily::kDiagonals, HeadFamily::kBand,    HeadFamily::kDiagonals,
        HeadFamily::kStripes,   HeadFamily::kBand,    HeadFamily::kDiagonals,
        HeadFamily::kPatches,   HeadFamily::kBand,    HeadFamily::kDiagonals,
        HeadFamily::kStripes,   HeadFamily::kBand,    HeadFamily::kDiagonals,
        HeadFamily::kBand,      HeadFamily::kPatches, HeadFamily::kStripes,
        HeadFamily::kDiagonals};
    head.family = head.density_ppm > 850'000 ? HeadFamily::kNoise : kFamilies[dice % 16];
    head.period = std::max<int64_t>(2, blocks / static_cast<int64_t>(8 + (dice >> 8) % 13));
    head.stripes = 1 + static_cast<int64_t>((dice >> 16) % 3);
    heads.push_back(head);
  }
  return heads;
}

std::vector<SyntheticHead> DrawHeads(const SyntheticSpec& spec, const Style& style) {
  std::vector<int64_t> densities;
  for (int64_t h = 0; h < spec.heads; ++h) {
    // Equally spaced quantiles rather than free draws: a mask of few heads still has light and
    // heavy ones.
    const int64_t u = (2 * h + 1) * kDensityOne / (2 * spec.heads);
    int64_t power = u;
    for (int64_t i = 1; i < style.spread; ++i) power = power * u / kDensityOne;
    const bool dense = h >= spec.heads - spec.heads * style.dense_share / 16;
    densities.push_back(dense ? 4 * kDensityOne : kDensityOne / 8 + power);
  }
  ScaleDensities(densities, spec.density_ppm, style.most_ppm);
  ShuffleToUnevenness(densities, spec.seed, style.parts, style.unevenness);
  return HeadsOfDensities(spec.seed, spec.blocks, densities);
}

std::vector<SyntheticHead> HeadsOf(const SyntheticSpec& spec, const Style& style) {
  std::vector<SyntheticHead> heads;
  auto fill = [&](HeadFamily family) {
    for (int64_t h = 0; h < spec.heads; ++h) {
      heads.push_back(
          {family, spec.density_ppm, DrawBits(spec.seed, 11, static_cast<uint64_t>(h)), 1, 0});
    }
  };
  switch (spec.kind) {
    case SyntheticKind::kUniform:
      fill(HeadFamily::kNoise);
      break;
    case SyntheticKind::kBanded:
      fill(HeadFamily::kBand);
      break;
    case SyntheticKind::kOneDense: {
      fill(HeadFamily::kBand);
      // The mean stays as asked for, as far as one dense head allows; the others differ.
      const size_t dense = DrawBits(spec.seed, 12) % heads.size();
      std::swap(heads[dense], heads.back());
      std::vector<int64_t> densities;
      for (size_t h = 0; h + 1 < heads.size(); ++h) {
        densities.push_back(static_cast<int64_t>(768 + heads[h].seed % 512));
      }
      if (!densities.empty()) {
        const int64_t rest = std::max<int64_t>(0, spec.heads * spec.density_ppm - kDensityOne);
        ScaleDensities(densities, rest / static_cast<int64_t>(densities.size()), kDensityOne);
      }
      for (size_t h = 0; h < densities.size(); ++h) heads[h].density_ppm = densities[h];
      heads.back().density_ppm = kDensityOne;
      std::swap(heads[dense], heads.back());
      break;
    }
    case SyntheticKind::kWan:
    case SyntheticKind::kHeadline:
      heads = DrawHeads(spec, style);
      break;
    case SyntheticKind::kProfile:
      throw InputError("[pattern] synthetic profile: is known to `equitile plan` only");
  }
  return heads;
}

Style StyleOf(SyntheticKind kind) {
  // Unevenness of contiguous parts as published: 1.355 over 8 ranks (Wan2.1, PAROAttention), 1.51
  // over 4 (headline). The bumps were set so that plain ring has about 1.25 and 1.56 there;
  // synthetic_mask_test holds the figures.
  if (kind == SyntheticKind::kHeadline) return {1, 4 * kActivityOne, 4, 2, kDensityOne, 4, 1510};
  return {2, kActivityOne / 2, 2, 1, 920'000, 8, 1355};
}

BlockGrid GridOf(const SyntheticSpec& spec) {
  const int64_t tokens = spec.blocks * spec.block_tokens;
  return {tokens, tokens, spec.block_tokens};
}

BlockMask DrawMask(const SyntheticSpec& spec, const std::vector<SyntheticHead>& heads,
                   const VideoActivity& activity) {
  BlockMask mask({spec.batch, spec.heads}, GridOf(spec));
  for (int64_t item = 0; item < spec.batch; ++item) {
    for (int64_t h = 0; h < spec.heads; ++h) {
      // The passes of one step look alike and differ in the details.
      SyntheticHead head = heads[static_cast<size_t>(h)];
      head.seed = DrawBits(head.seed, 40, static_cast<uint64_t>(item));
      WriteHead(head, activity, mask.lanes().Lane(item, h), mask);
    }
  }
  return mask;
}

}  // namespace

SyntheticSpec DefaultSpec(SyntheticKind kind) {
  SyntheticSpec spec;
  spec.kind = kind;
  spec.density_ppm = kind == SyntheticKind::kWan        ? 430'000
                     : kind == SyntheticKind::kOneDense ? 120'000
                                                        : 300'000;
  return spec;
}

SyntheticSpec ParseSyntheticSpec(std::string_view text) {
  const size_t comma = std::min(text.find(','), text.size());
  const std::string_view name = text.substr(0, comma);
  const auto kind = std::find(kKindNames.begin(), kKindNames.end(), name);
  if (kind == kKindNames.end()) {
    throw InputError(
        "[pattern] unknown synthetic mask '{}'; use wan, uniform, banded, one-dense, headline or "
        "profile",
        name);
  }
  SyntheticSpec spec = DefaultSpec(static_cast<SyntheticKind>(kind - kKindNames.begin()));
  const bool profile = spec.kind == SyntheticKind::kProfile;
  constexpr int64_t kMost = int64_t{1} << 20;
  for (size_t at = comma; at < text.size();) {
    const size_t end = std::min(text.find(',', at + 1), text.size());
    const std::string_view item = text.substr(at + 1, end - at - 1);
    at = end;
    const size_t equals = item.find('=');
    const std::string_view key = item.substr(0, equals);
    const std::string_view value =
        equals == std::string_view::npos ? std::string_view() : item.substr(equals + 1);
    if (key == "file" && profile)
      spec.file = value;
    else if (key == "step" && profile)
      spec.step = ParseCount(key, value, 1, kMost);
    else if (key == "heads" && !profile)
      spec.heads = ParseCount(key, value, 1, kMost);
    else if (key == "blocks")
      spec.blocks = ParseCount(key, value, 1, kMost);
    else if (key == "batch")
      spec.batch = ParseCount(key, value, 1, kMost);
    else if (key == "block")
      spec.block_tokens = ParseCount(key, value, kMinBlockTokens, kMaxBlockTokens);
    else if (key == "seed")
      spec.seed = static_cast<uint64_t>(ParseCount(key, value, 0, INT64_MAX));
    else if (key == "density" && !profile)
      spec.density_ppm = ParseDensity(value);
    else
      throw InputError("[pattern] synthetic mask: unknown '{}'; keys are {}", item,
                       profile ? kProfileKeys : kKeys);
  }
  if (profile && spec.file.empty())
    throw InputError("[pattern] synthetic profile: file=FILE is missing");
  CheckSpec(spec);
  return spec;
}

std::string SyntheticSpecText(const SyntheticSpec& spec) {
  if (spec.kind == SyntheticKind::kProfile) {
    return fmt::format("profile,file={},step={},blocks={},seed={},batch={},block={}", spec.file,
                       spec.step, spec.blocks, spec.seed, spec.batch, spec.block_tokens);
  }
  return fmt::format("{},heads={},blocks={},density={}.{:06},seed={},batch={},block={}",
                     kKindNames[static_cast<size_t>(spec.kind)], spec.heads, spec.blocks,
                     spec.density_ppm / kDensityOne, spec.density_ppm % kDensityOne, spec.seed,
                     spec.batch, spec.block_tokens);
}

BlockMask MakeSyntheticMask(const SyntheticSpec& spec) {
  CheckSpec(spec);
  const Lanes lanes = {spec.batch, spec.heads};
  const BlockGrid grid = GridOf(spec);
  if (spec.density_ppm == kDensityOne) return BlockMask::Dense(lanes, grid);
  if (spec.density_ppm == 0) return BlockMask(lanes, grid);
  const Style style = StyleOf(spec.kind);
  const bool even = spec.kind != SyntheticKind::kWan && spec.kind != SyntheticKind::kHeadline;
  const VideoActivity activity =
      DrawActivity(spec.seed, spec.blocks, even ? 0 : style.bumps, style.bump_height, style.parts);
  return DrawMask(spec, HeadsOf(spec, style), activity);
}

BlockMask MakeProfileMask(const SyntheticSpec& spec, int64_t layer,
                          std::span<const int64_t> density_ppm) {
  SyntheticSpec drawn = spec;
  drawn.heads = std::ssize(density_ppm);
  CheckSpec(drawn);
  const Style style = StyleOf(SyntheticKind::kWan);
  // The layers of a step see one video.
  const VideoActivity activity =
      DrawActivity(spec.seed, spec.blocks, style.bumps, style.bump_height, style.parts);
  const uint64_t seed = DrawBits(spec.seed, 50, static_cast<uint64_t>(layer));
  return DrawMask(drawn, HeadsOfDensities(seed, spec.blocks, density_ppm), activity);
}

BlockMask MakeDriftingMask(const SyntheticSpec& spec, double position) {
  if (!(position >= 0) || position > 1e6)
    throw InputError("[pattern] drift to position {}: must be from 0 to 1000000", position);
  SyntheticSpec here = spec, there = spec;
  here.seed += static_cast<uint64_t>(position);
  there.seed = here.seed + 1;
  const double share = position - std::floor(position);
  BlockMask mask = MakeSyntheticMask(here);
  if (share == 0) return mask;
  const BlockMask next = MakeSyntheticMask(there);
  for (int64_t lane = 0; lane < mask.LaneCount(); ++lane) {
    for (int64_t row = 0; row < mask.QBlocks(); ++row) {
      Hasher turn;
      turn.Add(here.seed).Add(lane).Add(row);
      if (static_cast<double>(turn.Digest() >> 11) * 0x1p-53 >= share) continue;
      std::ranges::copy(next.Row(lane, row), mask.MutableRow(lane, row).begin());
    }
  }
  return mask;
}

}  // namespace equitile
