#include "equitile/plan/predict/accounts.h"

#include <algorithm>
#include <bit>

#include "equitile/plan/core/walker.h"

namespace equitile {
namespace {

class Accountant {
 public:
  Accountant(const Program& program, const HomeMap& homes, const BlockMask& mask,
             const WireFormat& wire, Accounts& out)
      : program_(program), homes_(homes), mask_(mask), wire_(wire), out_(out) {
    const size_t ranks = static_cast<size_t>(program.problem.ranks);
    out_.work = {.ranks = program.problem.ranks,
                 .stages = static_cast<int32_t>(program.stages.size()),
                 .work = {}};
    out_.work.work.resize(ranks * program.stages.size());
    out_.traffic = {.sent = std::vector<int64_t>(ranks, 0),
                    .received = std::vector<int64_t>(ranks, 0)};
    out_.buffer_bytes.assign(ranks, 0);
    held_.assign(ranks, 0);
    kv_held_.assign(ranks, 0);
    kv_arriving_.assign(ranks, 0);
    leaving_.assign(ranks, 0);
    kv_staying_.assign(ranks, 0);
    for (const Task& task : program.tasks) is_ring_ |= task.kv_set != 0;
    met_.assign(ranks, -1);
  }

  void HomeSends(int32_t stage) {
    int32_t to = kHome;
    for (const Transfer& transfer : Inputs(stage)) {
      if (transfer.from != kHome) continue;
      if (transfer.to != to) ++conversation_;
      to = transfer.to;
      if (transfer.cargo == Cargo::kMeans) {
        MoveMeans(transfer);
        continue;
      }
      const bool is_q = transfer.cargo == Cargo::kQ;
      Move(transfer, is_q ? Side::kQuery : Side::kKey, is_q ? wire_.QBytes() : wire_.KvBytes());
    }
  }

  void Receive(int32_t stage) {
    std::swap(kv_held_, kv_arriving_);
    for (const Transfer& transfer : Inputs(stage)) {
      if (transfer.cargo == Cargo::kMeans)
        continue;  // summed up as they come, held as a few floats
      const bool is_q = transfer.cargo == Cargo::kQ;
      const int64_t bytes = Tokens(transfer.blocks, is_q ? Side::kQuery : Side::kKey) *
                            (is_q ? wire_.QBytes() : wire_.KvBytes());
      if (!is_q) kv_arriving_[Index(transfer.to)] += bytes;
      Hold(transfer.to, bytes);
      if (transfer.from != kHome) {
        Count(transfer.from, transfer.to, bytes);
        ++out_.messages;
      }
    }
  }

  void Await(int32_t stage) {
    for (const Transfer& transfer : Inputs(stage)) {
      if (transfer.cargo == Cargo::kQ)
        Hold(transfer.to, Tokens(transfer.blocks, Side::kQuery) * wire_.OBytes());
    }
    if (stage + 1 == std::ssize(program_.stages)) std::swap(kv_held_, kv_arriving_);
  }

  void Compute(int32_t stage) {
    for (const Task& task : program_.TasksOf(program_.stages[static_cast<size_t>(stage)].tasks)) {
      const KvSet& set = program_.kv_sets[static_cast<size_t>(task.kv_set)];
      Work& work = out_.work.At(task.rank, stage);
      for (const LaneBlocks& item : program_.BlocksOf(task.rows)) {
        for (int64_t row = item.begin; row < item.end; ++row) {
          int64_t blocks = 0;
          ForEachWord(mask_, set, item.lane, row,
                      [&](int64_t, uint64_t bits) { blocks += std::popcount(bits); });
          work.blocks += blocks;
          work.rows += blocks > 0;
        }
      }
    }
  }

  void Return(int32_t stage) {
    for (size_t r = 0; r < held_.size(); ++r) {
      const int64_t kv = std::exchange(kv_held_[r], 0);
      // A ring's own chunk came with its queries and stays with them.
      if (is_ring_ && stage == 0) {
        kv_staying_[r] = kv;
      } else {
        held_[r] -= kv;
      }
      held_[r] -= std::exchange(leaving_[r], 0);
      if (stage + 1 == std::ssize(program_.stages)) held_[r] -= std::exchange(kv_staying_[r], 0);
    }
    for (const Transfer& transfer :
         program_.TransfersOf(program_.stages[static_cast<size_t>(stage)].returns)) {
      ++conversation_;
      Move(transfer, Side::kQuery, wire_.OBytes());
      const int64_t tokens = Tokens(transfer.blocks, Side::kQuery);
      held_[Index(transfer.from)] -= tokens * wire_.QBytes();
      leaving_[Index(transfer.from)] += tokens * wire_.OBytes();
    }
  }

  void Finish() {}

 private:
  static size_t Index(int32_t rank) { return static_cast<size_t>(rank); }
  std::span<const Transfer> Inputs(int32_t stage) const {
    return program_.TransfersOf(program_.stages[static_cast<size_t>(stage)].inputs);
  }

  int64_t Tokens(Span blocks, Side side) const {
    int64_t tokens = 0;
    for (const LaneBlocks& item : program_.BlocksOf(blocks))
      tokens += homes_.BlockTokens(side, item.blocks());
    return tokens;
  }

  void Hold(int32_t rank, int64_t bytes) {
    held_[Index(rank)] += bytes;
    out_.buffer_bytes[Index(rank)] = std::max(out_.buffer_bytes[Index(rank)], held_[Index(rank)]);
  }

  void Count(int32_t from, int32_t to, int64_t bytes) {
    out_.traffic.sent[Index(from)] += bytes;
    out_.traffic.received[Index(to)] += bytes;
  }

  // Between homes and one rank, either way.
  void Move(const Transfer& transfer, Side side, int64_t token_bytes) {
    const bool from_home = transfer.from == kHome;
    const int32_t rank = from_home ? transfer.to : transfer.from;
    for (const LaneBlocks& item : program_.BlocksOf(transfer.blocks)) {
      homes_.ForEachPart(side, item.lane, item.blocks(), [&](int32_t home, int64_t tokens) {
        if (home == rank) return;
        Count(from_home ? home : rank, from_home ? rank : home, tokens * token_bytes);
        if (met_[Index(home)] != conversation_) ++out_.messages;
        met_[Index(home)] = conversation_;
      });
    }
  }

  // A block's sums come from every home that has tokens of it.
  void MoveMeans(const Transfer& transfer) {
    for (const LaneBlocks& item : program_.BlocksOf(transfer.blocks)) {
      for (int32_t block = item.begin; block < item.end; ++block) {
        homes_.ForEachPart(Side::kKey, item.lane, {block, block + 1}, [&](int32_t home, int64_t) {
          if (home == transfer.to) return;
          Count(home, transfer.to, wire_.MeansBytes());
          if (met_[Index(home)] != conversation_) ++out_.messages;
          met_[Index(home)] = conversation_;
        });
      }
    }
    ++conversation_;  // they travel by themselves
  }

  const Program& program_;
  const HomeMap& homes_;
  const BlockMask& mask_;
  WireFormat wire_;
  Accounts& out_;
  std::vector<int64_t> held_, kv_held_, kv_arriving_, leaving_, kv_staying_;  // [ranks] bytes
  bool is_ring_ = false;
  std::vector<int64_t> met_;  // [ranks] last conversation in which the home took part
  int64_t conversation_ = 0;
};

}  // namespace

int64_t Accounts::BufferMax() const {
  return buffer_bytes.empty() ? 0 : *std::max_element(buffer_bytes.begin(), buffer_bytes.end());
}

Accounts TakeAccounts(const Program& program, const HomeMap& homes, const BlockMask& mask,
                      const WireFormat& wire) {
  Accounts accounts;
  Walk(program, Accountant(program, homes, mask, wire, accounts));
  return accounts;
}

}  // namespace equitile
