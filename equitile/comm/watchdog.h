// Tells slow from dead: the one rule by which a rank counts as missing, whoever carries the
// heartbeats.
#pragma once

namespace equitile {

// Belongs to one rank; all times are that rank's Now().
class Watchdog {
 public:
  // A limit of 0 watches nobody.
  Watchdog(double limit_seconds, double now)
      : limit_(limit_seconds), seen_(now), awake_since_(now), next_(now + limit_seconds / 10) {}

  bool On() const { return limit_ > 0; }
  double limit() const { return limit_; }
  // How often to send heartbeats and to look around: often enough that losing one changes nothing.
  double Interval() const { return limit_ / 10; }

  // To be called at every sign of life of this rank. True when Interval() has passed since it last
  // was.
  bool Due(double now) {
    if (!On()) return false;
    // Whoever was away for long (a laptop's lid, a debugger, a starved core) has not listened, and
    // gives the others a full limit to be heard again.
    if (now - seen_ > limit_ / 2) awake_since_ = now;
    seen_ = now;
    if (now < next_) return false;
    next_ = now + Interval();
    return true;
  }

  // Whether a rank that was last heard at `heard` counts as dead.
  bool Missing(double heard, double now) const {
    return On() && now - heard > limit_ && now - awake_since_ > limit_;
  }

 private:
  double limit_;
  double seen_;
  double awake_since_;
  double next_;
};

}  // namespace equitile
