// The time that is left for what follows the passes of a search: stages, each by the dense steps
// that it is expected to cost until it has a pace of its own.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace equitile {

class LaterStages {
 public:
  // The last of those that will come; of one that is expected already, anew.
  void Expect(std::string_view name, double steps);
  double Steps() const;  // of all that are not over
  // Of the stage under way, of which a part is done, and of all after it; those before it are over.
  // 0: not known.
  double SecondsLeft(std::string_view name, double done, double now, double step_seconds);

 private:
  struct Stage {
    std::string name;
    double steps;
  };
  struct Moment {
    double done = 0, seconds = 0;
  };
  std::vector<Stage> stages_;
  std::string under_way_;
  Moment begin_, last_;  // of the stage under way: in this process, and when it last got on
};

// "  ETA 12 s" behind a line of progress; "" where the time is not known.
std::string EtaText(double seconds_left);

}  // namespace equitile
