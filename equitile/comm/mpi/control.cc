#include "equitile/comm/mpi/control.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "equitile/comm/mpi/mpi_check.h"
#include "equitile/comm/mpi/simulator.h"

namespace equitile::mpi {
namespace {

constexpr int kNoteTag = 1;
constexpr double kTellingSeconds = 1;

bool Complete(MPI_Request& request) {
  int done = 1;
  EQ_MPI(MPI_Test(&request, &done, MPI_STATUS_IGNORE));
  return done != 0;
}

}  // namespace

Control::Control(MPI_Comm world, double watchdog_seconds)
    : watchdog_(watchdog_seconds, MPI_Wtime()) {
  int size = 0;
  EQ_MPI(MPI_Comm_dup(world, &comm_));
  EQ_MPI(MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN));
  EQ_MPI(MPI_Comm_rank(comm_, &rank_));
  EQ_MPI(MPI_Comm_size(comm_, &size));
  peers_.resize(static_cast<size_t>(size));
  for (Peer& peer : peers_) peer.heard = MPI_Wtime();
}

void Control::Poll() {
  const double now = MPI_Wtime();
  ReadNotes(now);
  if (failure_ || !watchdog_.Due(now)) return;
  SendHeartbeats();
  LookForMissing(now);
}

void Control::ReadNotes(double now) {
  while (true) {
    int there = 0;
    MPI_Status status;
    EQ_MPI(MPI_Iprobe(MPI_ANY_SOURCE, kNoteTag, comm_, &there, &status));
    if (there == 0) return;
    Note note;
    EQ_MPI(MPI_Recv(&note, sizeof(note), MPI_BYTE, status.MPI_SOURCE, kNoteTag, comm_,
                    MPI_STATUS_IGNORE));
    Read(note, status.MPI_SOURCE, now);
  }
}

void Control::Read(const Note& note, int32_t from, double now) {
  Peer& peer = peers_[static_cast<size_t>(from)];
  ++peer.received;
  peer.heard = now;
  const Place place = {note.step, note.layer, note.stage};
  if (note.is_failure == 0) {
    peer.place = place;
  } else if (!failure_) {
    failure_ = {note.rank, place, static_cast<FailureKind>(note.kind), note.cause};
  }
}

void Control::SendHeartbeats() {
  const Note note = {.is_failure = 0,
                     .rank = rank_,
                     .step = place_.step,
                     .layer = place_.layer,
                     .stage = place_.stage};
  for (size_t r = 0; r < peers_.size(); ++r) {
    // One that has not read the last heartbeat needs no second one.
    if (static_cast<int32_t>(r) != rank_ && Complete(peers_[r].sending)) {
      Send(static_cast<int32_t>(r), note);
    }
  }
}

void Control::Send(int32_t to, const Note& note) {
  Peer& peer = peers_[static_cast<size_t>(to)];
  peer.note = note;
  ++peer.sent;
  EQ_MPI(MPI_Isend(&peer.note, sizeof(peer.note), MPI_BYTE, to, kNoteTag, comm_, &peer.sending));
}

void Control::LookForMissing(double now) {
  for (size_t r = 0; r < peers_.size(); ++r) {
    const auto rank = static_cast<int32_t>(r);
    if (rank == rank_ || !watchdog_.Missing(peers_[r].heard, now)) continue;
    return Fail({rank, peers_[r].place, FailureKind::kLost,
                 fmt::format("[comm] no sign of life for {:.3g} s (noticed by rank {})",
                             watchdog_.limit(), rank_)});
  }
}

void Control::Fail(RankFailure failure) {
  if (failure_) return;
  failure_ = std::move(failure);
  if (kSimulator) return;  // it ends all ranks at once
  Note note = {.is_failure = 1,
               .rank = failure_->rank,
               .step = failure_->place.step,
               .layer = failure_->place.layer,
               .stage = failure_->place.stage,
               .kind = static_cast<int32_t>(failure_->kind)};
  const size_t length = std::min(failure_->cause.size(), sizeof(note.cause) - 1);
  std::memcpy(note.cause, failure_->cause.data(), length);
  std::vector<int32_t> untold;
  for (int32_t r = 0; r < static_cast<int32_t>(peers_.size()); ++r) {
    if (r != rank_) untold.push_back(r);
  }
  std::vector<int32_t> sending;
  const double until = MPI_Wtime() + kTellingSeconds;
  while (MPI_Wtime() < until && !(untold.empty() && sending.empty())) {
    // A heartbeat that is still on its way holds the peer's one buffer.
    std::erase_if(untold, [&](int32_t r) {
      if (!Complete(peers_[static_cast<size_t>(r)].sending)) return false;
      Send(r, note);
      sending.push_back(r);
      return true;
    });
    std::erase_if(sending,
                  [&](int32_t r) { return Complete(peers_[static_cast<size_t>(r)].sending); });
    // Nobody waits for the lost.
    if (untold.empty() && std::all_of(sending.begin(), sending.end(),
                                      [&](int32_t r) { return r == failure_->rank; })) {
      return;
    }
  }
}

void Control::Close() {
  std::vector<int64_t> sent, expected(peers_.size());
  for (const Peer& peer : peers_) sent.push_back(peer.sent);
  EQ_MPI(MPI_Alltoall(sent.data(), 1, MPI_INT64_T, expected.data(), 1, MPI_INT64_T, comm_));
  const auto unread = [&] {
    for (size_t r = 0; r < peers_.size(); ++r) {
      if (peers_[r].received < expected[r]) return true;
    }
    return false;
  };
  while (unread()) ReadNotes(MPI_Wtime());
  for (Peer& peer : peers_) EQ_MPI(MPI_Wait(&peer.sending, MPI_STATUS_IGNORE));
  EQ_MPI(MPI_Comm_free(&comm_));
}

}  // namespace equitile::mpi
