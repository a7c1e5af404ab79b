// Predicted seconds of a Program on a Cluster: the walker's schedule with clocks.
// docs/design/0010-plans.md has the formulas.
#pragma once

#include <cstdint>
#include <vector>

#include "equitile/plan/core/home_map.h"
#include "equitile/plan/core/program.h"
#include "equitile/plan/predict/machine.h"
#include "equitile/plan/predict/stage_work.h"

namespace equitile {

// One rank in one stage, seconds from the start of the layer.
struct StageTimes {
  double arrived = 0;         // inputs complete
  double begin = 0, end = 0;  // computing
  double exchange =
      0;  // of the idle time before `begin`, its last seconds: a transfer is under way
};

// One rank after its last stage: until `exchange` it waits for others to compute, then for their
// output to arrive.
struct HomeTimes {
  double exchange = 0, done = 0;
};

// seconds = compute + pack + exchange + wait; the four are means over ranks.
struct Prediction {
  double seconds = 0;  // until the last output is at home
  double compute = 0;
  double pack = 0;      // for the wire and for the kernel, and output back
  double exchange = 0;  // idle while a transfer that the rank needs is under way
  double wait =
      0;  // idle otherwise: for a rank that is still computing, or for the slowest to finish
  std::vector<StageTimes> timeline;  // [ranks][stages]
  std::vector<HomeTimes> home;       // [ranks]
};

// work: of the program's plan and mask.
Prediction Simulate(const Program& program, const HomeMap& homes, const StageWork& work,
                    const Cluster& cluster);

// The db-SP paper's estimate (its section 4.3) for the layout U_x R_y that the plan has:
//   all-to-all(x) + (max(compute, p2p(y)) (y - 1) + compute) rho,
//   compute = kept blocks of an average rank in one ring iteration + launch,
// with launch what an iteration takes on top of its blocks, whatever is in it: starting it, and the
// rows of an average rank, which are the same in every iteration.
double PaperLatency(const Plan& plan, int64_t kept_blocks, double rho, const Cluster& cluster);

}  // namespace equitile
