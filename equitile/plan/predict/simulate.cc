#include "equitile/plan/predict/simulate.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <span>
#include <utility>

#include "equitile/base/error.h"
#include "equitile/plan/core/walker.h"
#include "equitile/plan/predict/cables.h"

namespace equitile {
namespace {

// Bytes over the two classes of links, which carry at the same time.
struct Load {
  int64_t near = 0, far = 0;

  void Add(bool is_near, int64_t bytes) { (is_near ? near : far) += bytes; }
  bool empty() const { return near == 0 && far == 0; }
};

// All that goes between a rank and a home on another node in one stage.
struct FarMessage {
  int32_t rank = 0, home = 0;
  int64_t bytes = 0;
  double ready = 0;
};

// K, V and Q travel together.
void JoinMessages(std::vector<FarMessage>& messages) {
  std::stable_sort(messages.begin(), messages.end(), [](const FarMessage& a, const FarMessage& b) {
    return std::pair(a.rank, a.home) < std::pair(b.rank, b.home);
  });
  size_t last = 0;
  for (size_t i = 1; i < messages.size(); ++i) {
    FarMessage& into = messages[last];
    if (into.rank == messages[i].rank && into.home == messages[i].home) {
      into.bytes += messages[i].bytes;
      into.ready = std::max(into.ready, messages[i].ready);
    } else {
      messages[++last] = messages[i];
    }
  }
  if (!messages.empty()) messages.resize(last + 1);
}

class Simulator {
 public:
  // `cables` has carried what an earlier walk has found, and is told what this one finds.
  Simulator(const Program& program, const HomeMap& homes, const StageWork& work,
            const Cluster& cluster, Cables& cables, Prediction& out)
      : program_(program),
        homes_(homes),
        work_(work),
        cluster_(cluster),
        cables_(cables),
        out_(out),
        ranks_(program.problem.ranks),
        stages_(static_cast<int32_t>(program.stages.size())),
        block_seconds_(cluster.BlockSeconds(program.problem.grid)),
        pack_seconds_(cluster.pack_seconds_per_byte *
                      (static_cast<double>(cluster.wire.head_dim) * sizeof(float) /
                       static_cast<double>(cluster.wire.QBytes()))) {
    out_.timeline.resize(Size() * static_cast<size_t>(stages_));
    home_inputs_.resize(static_cast<size_t>(stages_));
    part_bytes_.assign(Size(), 0);
    sent_by_.assign(Size(), 0);
    received_by_.assign(Size(), 0);
    returned_by_.assign(Size(), 0);
    back_.resize(Size());
    idle_exchange_.assign(Size(), 0);
    compute_.assign(Size(), 0);
    packed_by_.assign(Size(), 0);
    pack_.assign(Size(), 0);
    exchanges_.assign(Size(), false);
  }

  // Homes pack and push the stages' inputs one after the other, all from the start.
  void HomeSends(int32_t stage) {
    HomeInputs& now = home_inputs_[Index(stage)];
    std::vector<Load> out(Size());
    std::vector<RankPair> pairs;
    for (const Transfer& transfer : Inputs(stage)) {
      if (transfer.from != kHome) {
        exchanges_[Index(transfer.from)] = exchanges_[Index(transfer.to)] = true;
        continue;
      }
      if (now.in.empty()) {
        now.in.resize(Size());
        now.pushed.assign(Size(), 0);
        now.repack.assign(Size(), 0);
      }
      for (int32_t home : SumParts(transfer, transfer.to)) {
        const bool near = cluster_.SameNode(home, transfer.to);
        now.in[Index(transfer.to)].Add(near, part_bytes_[Index(home)]);
        out[Index(home)].Add(near, part_bytes_[Index(home)]);
        packed_by_[Index(home)] += PackSeconds(home, part_bytes_[Index(home)]);
        exchanges_[Index(home)] = exchanges_[Index(transfer.to)] = true;
        pairs.push_back({home, transfer.to});
        if (!near && cables_.any())
          now.far.push_back({transfer.to, home, part_bytes_[Index(home)], packed_by_[Index(home)]});
      }
      packed_by_[Index(transfer.to)] += PackSeconds(transfer.to, own_bytes_);
      now.repack[Index(transfer.to)] += PackSeconds(transfer.to, reordered_bytes_);
    }
    for (size_t r = 0; r < Size(); ++r) {
      if (!out[r].empty()) sent_by_[r] = std::max(sent_by_[r], packed_by_[r]) + Seconds(out[r]);
    }
    now.sent_by = sent_by_;
    JoinMessages(now.far);
    for (const auto& [home, to] : pairs)
      now.pushed[Index(to)] = std::max(now.pushed[Index(to)], sent_by_[Index(home)]);
  }

  void Receive(int32_t) {}  // begins when the stage before is computed; see Await

  void Await(int32_t stage) {
    if (stage == 0) BeginPacked();
    for (int32_t rank = 0; rank < ranks_; ++rank) {
      StageTimes& now = At(rank, stage);
      const double free = stage == 0 ? packed_by_[Index(rank)] : At(rank, stage - 1).end;
      const double asked = stage == 0 ? 0 : At(rank, stage - 1).begin;
      now.arrived = asked;
      const HomeInputs& inputs = home_inputs_[Index(stage)];
      if (!inputs.in.empty() && !inputs.in[Index(rank)].empty()) {
        const Load& load = inputs.in[Index(rank)];
        received_by_[Index(rank)] = std::max(received_by_[Index(rank)], asked) + Seconds(load);
        now.arrived =
            std::max(received_by_[Index(rank)], inputs.pushed[Index(rank)]) + Latency(load);
        const double carried = CarryInputs(inputs.far, rank, asked);
        now.arrived = std::max(now.arrived, carried + Latency(load));
      }
      now.begin = std::max(free, now.arrived);
      now.exchange = now.begin - free;
    }
    AwaitPasses(stage);
    for (int32_t rank = 0; rank < ranks_; ++rank) {
      StageTimes& now = At(rank, stage);
      const Work& work = work_.At(rank, stage);
      const double seconds = (static_cast<double>(work.blocks) * block_seconds_ +
                              static_cast<double>(work.rows) * cluster_.row_seconds) /
                             cluster_.Speed(rank);
      const HomeInputs& inputs = home_inputs_[Index(stage)];
      if (!inputs.repack.empty() && exchanges_[Index(rank)]) {
        now.begin += inputs.repack[Index(rank)];
        pack_[Index(rank)] += inputs.repack[Index(rank)];
      }
      now.end = now.begin + seconds;
      compute_[Index(rank)] += seconds;
      idle_exchange_[Index(rank)] += now.exchange;
    }
  }

  void Compute(int32_t) {}  // follows from Await

  void Return(int32_t stage) {
    const Span returns = program_.stages[Index(stage)].returns;
    for (const Transfer& transfer : program_.TransfersOf(returns)) {
      const size_t from = Index(transfer.from);
      Load out;
      const std::vector<int32_t>& foreign = SumParts(transfer, transfer.from);
      const double scatter = exchanges_[from] ? PackSeconds(transfer.from, reordered_bytes_) : 0;
      pack_[from] += scatter;
      const double computed = At(transfer.from, stage).end += scatter;
      for (int32_t home : foreign) {
        const bool near = cluster_.SameNode(home, transfer.from);
        out.Add(near, part_bytes_[Index(home)]);
        if (!near && cables_.any())
          far_out_.push_back({transfer.from, home, part_bytes_[Index(home)], computed});
        Back& back = back_[Index(home)];
        back.load.Add(near, part_bytes_[Index(home)]);
        back.unpack += PackSeconds(home, part_bytes_[Index(home)]);
        ++back.parcels;
        back.first = std::min(back.first, computed);
        back.last_computed = std::max(back.last_computed, computed);
      }
      // Inputs of the next stage leave through the same port, before.
      const std::vector<double>& sent_by =
          home_inputs_[Index(std::min(stage + 1, stages_ - 1))].sent_by;
      returned_by_[from] = std::max({returned_by_[from], computed, sent_by[from]}) + Seconds(out);
      for (int32_t home : foreign)
        back_[Index(home)].last = std::max(back_[Index(home)].last, returned_by_[from]);
    }
    CarryReturns();
  }

  void Finish() {
    out_.home.resize(Size());
    for (int32_t rank = 0; rank < ranks_; ++rank) {
      const double end = stages_ == 0 ? 0 : At(rank, stages_ - 1).end;
      const Back& back = back_[Index(rank)];
      HomeTimes& home = out_.home[Index(rank)];
      home = {.exchange = end, .done = end};
      if (back.load.empty()) continue;
      const double arrived =
          std::max(back.last, back.first + Seconds(back.load)) + Latency(back.load);
      // All but the last parcel are unpacked while that one is under way.
      home.done = std::max(end + back.unpack, arrived + back.unpack / back.parcels);
      home.exchange = std::min(home.done, std::max(end + back.unpack, back.last_computed));
      pack_[Index(rank)] += back.unpack;
      idle_exchange_[Index(rank)] += home.done - home.exchange;
    }
    for (const HomeTimes& home : out_.home) out_.seconds = std::max(out_.seconds, home.done);
    const double ranks = static_cast<double>(ranks_);
    out_.compute = std::accumulate(compute_.begin(), compute_.end(), 0.0) / ranks;
    out_.exchange = std::accumulate(idle_exchange_.begin(), idle_exchange_.end(), 0.0) / ranks;
    out_.pack = std::accumulate(pack_.begin(), pack_.end(), 0.0) / ranks;
    out_.wait = std::max(0.0, out_.seconds - out_.compute - out_.pack - out_.exchange);
  }

 private:
  struct HomeInputs {
    std::vector<Load> in;         // [ranks], or empty
    std::vector<FarMessage> far;  // by rank, home
    std::vector<double>
        pushed;  // [ranks] when the last of the rank's homes has pushed this stage's inputs
    std::vector<double> repack;   // [ranks] seconds for what comes as rows, or empty
    std::vector<double> sent_by;  // [ranks] when a home has pushed everything up to this stage
  };
  struct RankPair {
    int32_t from, to;
  };
  struct Back {
    Load load;
    double first =
        std::numeric_limits<double>::infinity();  // the first output for this home is computed
    double last_computed = 0;
    double last = 0;  // the last has left its rank
    double unpack = 0;
    int32_t parcels = 0;
  };

  template <typename I>
  static size_t Index(I i) {
    return static_cast<size_t>(i);
  }
  size_t Size() const { return static_cast<size_t>(ranks_); }
  StageTimes& At(int32_t rank, int32_t stage) {
    return out_.timeline[Index(int64_t{rank} * stages_ + stage)];
  }
  std::span<const Transfer> Inputs(int32_t stage) const {
    return program_.TransfersOf(program_.stages[Index(stage)].inputs);
  }

  double PackSeconds(int32_t rank, int64_t wire_bytes) const {
    return static_cast<double>(wire_bytes) * pack_seconds_ / cluster_.Speed(rank);
  }

  // Ranks that exchange nothing hand their tensors to the kernel as they are.
  void BeginPacked() {
    for (size_t r = 0; r < Size(); ++r) {
      if (!exchanges_[r]) packed_by_[r] = 0;
      pack_[r] += packed_by_[r];
    }
  }

  static CableFlow FlowOf(std::span<const FarMessage> messages) {
    CableFlow flow;
    for (const FarMessage& message : messages) flow.Add(message.bytes, message.ready);
    return flow;
  }

  // Calls visit(messages) for each run of messages of one rank whose homes are on one node.
  template <typename Visit>
  void ForEachFlow(std::span<const FarMessage> messages, Visit&& visit) const {
    for (size_t first = 0, last = 0; first < messages.size(); first = last) {
      const FarMessage& head = messages[first];
      while (last < messages.size() && messages[last].rank == head.rank &&
             cluster_.SameNode(messages[last].home, head.home))
        ++last;
      visit(messages.subspan(first, last - first));
    }
  }

  // When all that a rank gets from homes on other nodes is through the cables.
  double CarryInputs(const std::vector<FarMessage>& messages, int32_t rank, double asked) {
    const auto [first, last] =
        std::equal_range(messages.begin(), messages.end(), FarMessage{.rank = rank},
                         [](const FarMessage& a, const FarMessage& b) { return a.rank < b.rank; });
    double carried = 0;
    ForEachFlow({first, last}, [&](std::span<const FarMessage> part) {
      CableFlow flow = FlowOf(part);
      flow.ready = std::max(flow.ready, asked);
      flow.from_node = cluster_.NodeOf(part.front().home);
      flow.to_node = cluster_.NodeOf(rank);
      carried = std::max(carried, cables_.Add(flow));
    });
    return carried;
  }

  void CarryReturns() {
    ForEachFlow(far_out_, [&](std::span<const FarMessage> part) {
      CableFlow flow = FlowOf(part);
      flow.from_node = cluster_.NodeOf(part.front().rank);
      flow.to_node = cluster_.NodeOf(part.front().home);
      const double carried = cables_.Add(flow);
      for (const FarMessage& message : part) {
        double& last = back_[Index(message.home)].last;
        last = std::max(last, carried);
      }
    });
    far_out_.clear();
  }

  // One message for each home that the blocks came from.
  double CarryPass(const Transfer& transfer, double ready) {
    CableFlow flow{.from_node = cluster_.NodeOf(transfer.from),
                   .to_node = cluster_.NodeOf(transfer.to)};
    for (int32_t home : SumParts(transfer, kHome)) flow.Add(part_bytes_[Index(home)], ready);
    return cables_.Add(flow);
  }

  double Seconds(const Load& load) const {
    return std::max(static_cast<double>(load.near) / cluster_.node_link.bytes_per_second,
                    static_cast<double>(load.far) / cluster_.link.bytes_per_second);
  }
  double Latency(const Load& load) const {
    return std::max(load.near > 0 ? cluster_.node_link.latency_seconds : 0,
                    load.far > 0 ? cluster_.link.latency_seconds : 0);
  }

  // Homes other than `rank` that take part in a transfer between homes and `rank`; their bytes are
  // in part_bytes_. Beside them own_bytes_, what stays on `rank` in home order, and
  // reordered_bytes_, all of lanes in another order. Valid until the next call.
  const std::vector<int32_t>& SumParts(const Transfer& transfer, int32_t rank) {
    for (int32_t home : foreign_) part_bytes_[Index(home)] = 0;
    foreign_.clear();
    own_bytes_ = reordered_bytes_ = 0;
    if (transfer.cargo == Cargo::kMeans) return SumMeans(transfer, rank);
    const bool is_kv = transfer.cargo == Cargo::kKv;
    const WireFormat& wire = cluster_.wire;
    const int64_t token_bytes = is_kv                         ? wire.KvBytes()
                                : transfer.cargo == Cargo::kQ ? wire.QBytes()
                                                              : wire.OBytes();
    for (const LaneBlocks& item : program_.BlocksOf(transfer.blocks)) {
      const bool in_home_order = program_.problem.InHomeOrder(item.lane);
      homes_.ForEachPart(is_kv ? Side::kKey : Side::kQuery, item.lane, item.blocks(),
                         [&](int32_t home, int64_t tokens) {
                           if (!in_home_order) reordered_bytes_ += tokens * token_bytes;
                           if (home == rank) {
                             own_bytes_ += in_home_order ? tokens * token_bytes : 0;
                             return;
                           }
                           if (part_bytes_[Index(home)] == 0) foreign_.push_back(home);
                           part_bytes_[Index(home)] += tokens * token_bytes;
                         });
    }
    return foreign_;
  }

  // The same for sums over blocks, which weigh by the block.
  const std::vector<int32_t>& SumMeans(const Transfer& transfer, int32_t rank) {
    for (const LaneBlocks& item : program_.BlocksOf(transfer.blocks)) {
      for (int32_t block = item.begin; block < item.end; ++block) {
        homes_.ForEachPart(Side::kKey, item.lane, {block, block + 1}, [&](int32_t home, int64_t) {
          if (home == rank) return;
          if (part_bytes_[Index(home)] == 0) foreign_.push_back(home);
          part_bytes_[Index(home)] += cluster_.wire.MeansBytes();
        });
      }
    }
    return foreign_;
  }

  // A pass needs both ends in the stage before: one holds it then, the other has room.
  void AwaitPasses(int32_t stage) {
    for (const Transfer& transfer : Inputs(stage)) {
      if (transfer.from == kHome) continue;
      int64_t tokens = 0;
      for (const LaneBlocks& item : program_.BlocksOf(transfer.blocks))
        tokens += homes_.BlockTokens(Side::kKey, item.blocks());
      Load load;
      load.Add(cluster_.SameNode(transfer.from, transfer.to), tokens * cluster_.wire.KvBytes());
      StageTimes& now = At(transfer.to, stage);
      const double flow =
          std::max(At(transfer.from, stage - 1).begin, At(transfer.to, stage - 1).begin);
      const double free = now.begin;
      now.arrived = std::max(now.arrived, flow + Latency(load) + Seconds(load));
      if (load.far > 0 && cables_.any())
        now.arrived = std::max(now.arrived, CarryPass(transfer, flow) + Latency(load));
      now.begin = std::max(free, now.arrived);
      now.exchange += now.begin - std::min(now.begin, std::max(free, flow));
    }
  }

  const Program& program_;
  const HomeMap& homes_;
  const StageWork& work_;
  const Cluster& cluster_;
  Cables& cables_;
  Prediction& out_;
  int32_t ranks_, stages_;
  double block_seconds_, pack_seconds_;
  std::vector<HomeInputs> home_inputs_;                      // [stages]
  std::vector<double> sent_by_, received_by_, returned_by_;  // [ranks] when the port is free again
  std::vector<int64_t> part_bytes_;                          // [ranks]; 0 but for foreign_
  std::vector<int32_t> foreign_;
  int64_t own_bytes_ = 0, reordered_bytes_ = 0;
  std::vector<Back> back_;                              // [ranks]
  std::vector<double> idle_exchange_, compute_, pack_;  // [ranks] seconds
  std::vector<double> packed_by_;                       // [ranks] when a home has packed
  std::vector<FarMessage> far_out_;                     // of the stage that returns
  std::vector<bool> exchanges_;                         // [ranks] something with another rank
};

}  // namespace

Prediction Simulate(const Program& program, const HomeMap& homes, const StageWork& work,
                    const Cluster& cluster) {
  CheckCluster(cluster, program.problem.ranks);
  EQ_CHECK(work.ranks == program.problem.ranks && work.stages == std::ssize(program.stages));
  // What goes through a cable depends on everything that is under way then, also of later stages of
  // ranks that are ahead: walk, let the cables carry what was found, and walk again with that.
  Cables cables(cluster);
  Prediction prediction;
  for (int walk = 0; walk <= Cables::kMostRounds; ++walk) {
    prediction = {};
    Walk(program, Simulator(program, homes, work, cluster, cables, prediction));
    if (!cables.CarryAll()) break;
  }
  return prediction;
}

double PaperLatency(const Plan& plan, int64_t kept_blocks, double rho, const Cluster& cluster) {
  const Problem& problem = plan.problem();
  const double ranks = problem.ranks;
  const double ring = plan.movement() == Movement::kRing ? plan.Stages() : 1;
  const double ulysses = ranks / ring;
  const double lane_bytes =
      static_cast<double>(cluster.wire.QBytes()) * static_cast<double>(problem.lanes.heads);
  const double q_tokens = static_cast<double>(problem.grid.q_tokens * problem.lanes.batch);
  const double kv_tokens = static_cast<double>(problem.grid.kv_tokens * problem.lanes.batch);
  auto seconds = [&](double bytes) {
    return bytes > 0 ? cluster.link.latency_seconds + bytes / cluster.link.bytes_per_second : 0;
  };
  // Q and O, K and V of a rank's tokens, all but its own heads.
  const double all_to_all =
      seconds(2 * (q_tokens + kv_tokens) / ranks * lane_bytes * (ulysses - 1) / ulysses);
  const double p2p = ring > 1 ? seconds(2 * kv_tokens / ring * lane_bytes / ulysses) : 0;
  const double rows = static_cast<double>(problem.lanes.Count() * problem.grid.QBlocks()) / ranks;
  const double launch = cluster.launch_seconds + rows * cluster.row_seconds;
  const double compute =
      static_cast<double>(kept_blocks) * cluster.BlockSeconds(problem.grid) / (ranks * ring) +
      launch;
  return all_to_all + (std::max(compute, p2p) * (ring - 1) + compute) * rho;
}

}  // namespace equitile
