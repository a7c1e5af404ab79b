// The talk beside the data: heartbeats with a rank's place, and the news that a rank has failed. On
// a communicator of its own, so that it never meets a data message.
#pragma once

#include <mpi.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "equitile/comm/comm_error.h"
#include "equitile/comm/watchdog.h"

namespace equitile::mpi {

class Control {
 public:
  // Collective.
  Control(MPI_Comm world, double watchdog_seconds);

  void SetPlace(const Place& place) { place_ = place; }
  const Place& place() const { return place_; }

  // Sends heartbeats when they are due, reads what has come, and looks who is missing. Every call
  // drives MPI's progress.
  void Poll();

  const std::optional<RankFailure>& failure() const { return failure_; }
  // Unless one is known: makes this the failure of the job and tells everybody; gives MPI up to a
  // second to get the news out.
  void Fail(RankFailure failure);

  // Collective: no heartbeat is sent after it, and none is left unread.
  void Close();

 private:
  // Of one size, so that a reader needs not to ask.
  struct Note {
    int32_t is_failure = 0;
    int32_t rank = 0;
    int32_t step = 0, layer = 0, stage = 0;
    int32_t kind = 0;
    char cause[1000] = {};
  };
  struct Peer {
    double heard = 0;
    Place place;
    int64_t sent = 0;
    int64_t received = 0;
    Note note;  // what is being sent to it
    MPI_Request sending = MPI_REQUEST_NULL;
  };

  void Send(int32_t to, const Note& note);
  void SendHeartbeats();
  void ReadNotes(double now);
  void Read(const Note& note, int32_t from, double now);
  void LookForMissing(double now);

  MPI_Comm comm_ = MPI_COMM_NULL;
  int32_t rank_ = 0;
  std::vector<Peer> peers_;  // [size], this rank's own unused
  Place place_;
  Watchdog watchdog_;
  std::optional<RankFailure> failure_;
};

}  // namespace equitile::mpi
