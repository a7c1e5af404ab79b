// The one order in which a Program runs. The validator, the simulator, the accounts and the
// executor all walk it; there is no second implementation of any schedule.
#pragma once

#include <cstdint>

#include "equitile/plan/core/program.h"

namespace equitile {

// What every rank does, in this order (a visitor that runs on one rank keeps to its own part of
// each transfer and task):
// clang-format off
//   HomeSends(stage)  for all stages: homes offer what leaves them; nobody has to ask again
//   Receive(stage)    buffers for the stage's inputs are given to the network; ring ranks pass on
//                     what they hold
//   Await(stage)      the stage's inputs are here
//   Compute(stage)    while the inputs of the next stage are under way: Receive(stage + 1) is first
//   Return(stage)     finished O leaves for its home
//   Finish()          all O is at home
// clang-format on
// Stages do not synchronise ranks: a rank may be ahead of another by as much as the transfers it
// waits for allow.
template <typename Visitor>
void Walk(const Program& program, Visitor&& visitor) {
  const int32_t stages = static_cast<int32_t>(program.stages.size());
  for (int32_t stage = 0; stage < stages; ++stage) visitor.HomeSends(stage);
  if (stages > 0) visitor.Receive(0);
  for (int32_t stage = 0; stage < stages; ++stage) {
    visitor.Await(stage);
    if (stage + 1 < stages) visitor.Receive(stage + 1);
    visitor.Compute(stage);
    visitor.Return(stage);
  }
  visitor.Finish();
}

// Visits the kept blocks of one row that belong to a task: (word number, bits), words with no bit
// left out.
template <typename Visit>
void ForEachWord(const BlockMask& mask, const KvSet& set, int64_t lane, int64_t q_block,
                 Visit&& visit) {
  const std::span<const uint64_t> row = mask.Row(lane, q_block);
  for (const WordBits& part : set) {
    const uint64_t bits = row[static_cast<size_t>(part.word)] & part.bits;
    if (bits != 0) visit(part.word, bits);
  }
}

}  // namespace equitile
