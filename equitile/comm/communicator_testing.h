// What every communicator with several ranks must do, written once: each function is run by all
// ranks of one, on threads and on MPI.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "equitile/base/rng.h"
#include "equitile/comm/communicator.h"

namespace equitile::comm_testing {

// Bytes that only this message has.
inline std::vector<std::byte> Pattern(size_t bytes, int32_t from, int32_t to, int32_t tag,
                                      int32_t number = 0) {
  std::vector<std::byte> pattern(bytes);
  uint64_t state = 0x9E3779B97F4A7C15u *
                   (1 + static_cast<uint64_t>(((from * 64 + to) * 1024 + tag) * 512 + number));
  for (std::byte& byte : pattern) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    byte = static_cast<std::byte>(state >> 56);
  }
  return pattern;
}

inline void WaitAll(Communicator& comm, std::vector<CommRequest>& requests) {
  for (CommRequest& request : requests) {
    comm.Wait(request);
    EXPECT_FALSE(request.Active());
  }
}

// Every rank sends to every rank, itself included, with sizes from nothing upwards.
inline void AllToAll(Communicator& comm) {
  const int32_t me = comm.rank();
  for (const size_t bytes : {size_t{0}, size_t{1}, size_t{4097}, size_t{300'001}}) {
    std::vector<std::vector<std::byte>> sent, got;
    for (int32_t r = 0; r < comm.size(); ++r) {
      sent.push_back(Pattern(bytes, me, r, 7));
      got.emplace_back(bytes);
    }
    std::vector<CommRequest> requests;
    for (int32_t r = 0; r < comm.size(); ++r) {
      // Half of the ranks send first, so that both orders of meeting happen.
      if (me % 2 == 0) requests.push_back(comm.Send(sent[static_cast<size_t>(r)], r, 7));
      requests.push_back(comm.Receive(got[static_cast<size_t>(r)], r, 7));
      if (me % 2 == 1) requests.push_back(comm.Send(sent[static_cast<size_t>(r)], r, 7));
    }
    WaitAll(comm, requests);
    for (int32_t r = 0; r < comm.size(); ++r) {
      EXPECT_EQ(got[static_cast<size_t>(r)], Pattern(bytes, r, me, 7)) << bytes << " from " << r;
    }
  }
}

// Received in another order than sent: tags decide, not time.
inline void TagsOutOfOrder(Communicator& comm) {
  const int32_t next = (comm.rank() + 1) % comm.size();
  const int32_t before = (comm.rank() + comm.size() - 1) % comm.size();
  constexpr int32_t kTags = 20;
  std::vector<std::vector<std::byte>> sent, got(kTags);
  std::vector<CommRequest> requests;
  for (int32_t tag = 0; tag < kTags; ++tag) {
    sent.push_back(Pattern(static_cast<size_t>(100 + tag), comm.rank(), next, tag));
    requests.push_back(comm.Send(sent.back(), next, tag));
  }
  for (int32_t tag = kTags - 1; tag >= 0; --tag) {
    auto& bytes = got[static_cast<size_t>(tag)];
    bytes.resize(static_cast<size_t>(100 + tag));
    requests.push_back(comm.Receive(bytes, before, tag));
  }
  WaitAll(comm, requests);
  for (int32_t tag = 0; tag < kTags; ++tag) {
    EXPECT_EQ(got[static_cast<size_t>(tag)],
              Pattern(static_cast<size_t>(100 + tag), before, comm.rank(), tag));
  }
}

// Same tag: in the order of sending, whichever request is asked about first.
inline void ManyInOrder(Communicator& comm) {
  const int32_t next = (comm.rank() + 1) % comm.size();
  const int32_t before = (comm.rank() + comm.size() - 1) % comm.size();
  constexpr int32_t kMessages = 300;
  std::vector<std::vector<std::byte>> sent, got;
  std::vector<CommRequest> sends, receives;
  for (int32_t i = 0; i < kMessages; ++i) {
    sent.push_back(Pattern(64, comm.rank(), next, 3, i));
    got.emplace_back(64);
  }
  for (int32_t i = 0; i < kMessages; ++i) {
    sends.push_back(comm.Send(sent[static_cast<size_t>(i)], next, 3));
    receives.push_back(comm.Receive(got[static_cast<size_t>(i)], before, 3));
  }
  for (auto it = receives.rbegin(); it != receives.rend(); ++it) {
    while (!comm.Test(*it)) comm.Poll();
  }
  WaitAll(comm, sends);
  for (int32_t i = 0; i < kMessages; ++i) {
    EXPECT_EQ(got[static_cast<size_t>(i)], Pattern(64, before, comm.rank(), 3, i)) << i;
  }
}

inline void Collectives(Communicator& comm) {
  const auto n = static_cast<uint64_t>(comm.size());
  const auto me = static_cast<uint64_t>(comm.rank());
  for (int round = 0; round < 20; ++round) {
    std::vector<uint64_t> sum = {me + 1, ~uint64_t{0} - me};
    comm.AllReduce(sum, Reduce::kSum);
    EXPECT_EQ(sum[0], n * (n + 1) / 2);
    EXPECT_EQ(sum[1], uint64_t{0} - n - n * (n - 1) / 2);  // wraps, as hashes do
    std::vector<uint64_t> max = {me << 40};
    comm.AllReduce(max, Reduce::kMax);
    EXPECT_EQ(max[0], (n - 1) << 40);
    std::vector<double> min = {0.5 + static_cast<double>(me), -static_cast<double>(me)};
    comm.AllReduce(min, Reduce::kMin);
    EXPECT_EQ(min[0], 0.5);
    EXPECT_EQ(min[1], -static_cast<double>(n - 1));
    comm.AllReduce(std::span<double>(), Reduce::kSum);
    const auto root = static_cast<int32_t>(static_cast<uint64_t>(round) % n);
    std::vector<std::byte> bytes(1000);
    if (comm.rank() == root) bytes = Pattern(1000, root, 0, round);
    comm.Broadcast(bytes, root);
    EXPECT_EQ(bytes, Pattern(1000, root, 0, round));
    comm.Broadcast({}, root);
    comm.Barrier();
  }
}

// Sums that round are taken in rank order, whatever their number (a prime).
inline void SumsAgree(Communicator& comm) {
  auto value = [](int32_t rank, size_t i) {
    return 1.0 / (1.0 + static_cast<double>(Rng(static_cast<uint64_t>(rank) + 1).BelowAt(i, 1000)));
  };
  std::vector<double> sums(397);
  for (size_t i = 0; i < sums.size(); ++i) sums[i] = value(comm.rank(), i);
  comm.AllReduce(sums, Reduce::kSum);
  for (size_t i = 0; i < sums.size(); ++i) {
    double want = value(0, i);
    for (int32_t rank = 1; rank < comm.size(); ++rank) want += value(rank, i);
    EXPECT_EQ(sums[i], want) << i;
  }
}

}  // namespace equitile::comm_testing
