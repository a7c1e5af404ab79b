// From masses to kept blocks: the smallest set that holds a given share. Integers and fixed ties,
// so that the same masses give the same blocks everywhere.
#pragma once

#include <cstdint>
#include <span>

#include "equitile/pattern/block_mask.h"

namespace equitile {

// What a share of mass is a share of.
enum class MassBudget : uint8_t { kRow, kLayer };

struct MassRule {
  double mass =
      0.95;          // share of the row (or layer) that kept blocks hold together; 1: all are kept
  double min = 0.0;  // share of the blocks that is kept in any case, rounded up
  double max = 1.0;  // share of the blocks that is never exceeded, rounded up; at least min
  MassBudget budget = MassBudget::kRow;  // kLayer: see LayerBudget; knows no max
};

// Keeps the heaviest blocks of a row until they hold the share; of equal ones the first. masses:
// [kv blocks], in any unit: the share is of their sum. Blocks that the row keeps already stay, and
// count as held and as kept.
void KeepByMass(std::span<const uint32_t> masses, const MassRule& rule, int64_t lane,
                int64_t q_block, BlockMask& mask);

}  // namespace equitile
