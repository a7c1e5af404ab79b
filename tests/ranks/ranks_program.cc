// A program of ranks in which one can be made to fail, for tests of what happens then; built for a
// real MPI and for the simulator. It passes numbers around a ring and "computes" between, as the
// executor does.
//   ranks_program [--ranks N] [--watchdog S] [--threads T] [--fault none|throw|input|sleep|differ]
//                 [--on RANK] [--rounds R] [--bytes B] [--work S] [--pids FILE] [--links]
// Rank 0 prints {"ranks", "sum", "seconds"}; with --links the machine file of measured links
// instead.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdint>
#include <cstdio>
#include <span>
#include <string>
#include <vector>

#include "apps/cli/command_line.h"
#include "apps/cli/ranks.h"
#include "equitile/base/error.h"
#include "equitile/comm/mpi/launch.h"
#include "equitile/exec/link_calibration.h"
#include "equitile/io/records/machine_file.h"

namespace equitile {
namespace {

struct Options {
  RanksRequest ranks;
  std::string fault = "none";
  int32_t on = 1;
  int32_t rounds = 200;
  size_t bytes = 8000;
  double work_seconds = 0.005;
  std::string pids;
  bool links = false;
};

void Fail(const Options& options, Communicator& comm) {
  if (comm.rank() != options.on) return;
  if (options.fault == "throw") throw Error("the {} broke", "fan");
  if (options.fault == "input") throw InputError("[io] {}: no such file", "m.npy");
  if (options.fault == "sleep") sleep(60);
}

// As before every plan: all ranks must hold the same hash.
void CompareHashes(const Options& options, Communicator& comm) {
  const uint64_t hash = options.fault == "differ" && comm.rank() == options.on ? 2 : 1;
  std::vector<uint64_t> root = {hash};
  comm.Broadcast(std::as_writable_bytes(std::span(root)), 0);
  std::vector<uint64_t> odd = {root[0] == hash ? ~uint64_t{0} : static_cast<uint64_t>(comm.rank())};
  comm.AllReduce(odd, Reduce::kMin);
  if (odd[0] != ~uint64_t{0}) throw Error("rank {} has another mask than rank 0", odd[0]);
}

// In the simulator work is time that passes at once; elsewhere it polls until then, as kernels do.
void Work(Communicator& comm, double seconds) {
  if (comm.simulated()) return comm.Elapse(seconds);
  const double end = comm.Now() + seconds;
  while (comm.Now() < end) {
    usleep(200);
    comm.Poll();
  }
}

double Rounds(const Options& options, Communicator& comm) {
  const int32_t next = (comm.rank() + 1) % comm.size();
  const int32_t before = (comm.rank() + comm.size() - 1) % comm.size();
  std::vector<double> out(options.bytes / sizeof(double), comm.rank());
  std::vector<double> in(out.size());
  AbortOnError(comm, [&] {
    for (int32_t round = 0; round < options.rounds; ++round) {
      comm.SetPlace(round / 10, round % 10, 0);
      CommRequest receive = comm.Receive(std::as_writable_bytes(std::span(in)), before, round);
      CommRequest send = comm.Send(std::as_bytes(std::span(out)), next, round);
      Work(comm, options.work_seconds);
      if (round == options.rounds / 4) Fail(options, comm);
      comm.Wait(receive);
      comm.Wait(send);
      out.swap(in);
    }
  });
  return out.empty() ? 0 : out[0];
}

void WritePid(const Options& options, int32_t rank) {
  if (options.pids.empty()) return;
  std::FILE* file = std::fopen(options.pids.c_str(), "a");
  fmt::print(file, "{} {}\n", rank, getpid());
  std::fclose(file);
}

void Body(const Options& options, Communicator& comm) {
  WritePid(options, comm.rank());
  CompareHashes(options, comm);
  if (options.links) {
    Machine machine;
    MeasureLinks(comm, machine);
    if (comm.rank() == 0) fmt::print("{}", MachineFileText(machine));
    return;
  }
  comm.Barrier();
  const double begin = comm.Now();
  std::vector<double> sum = {Rounds(options, comm)};
  comm.AllReduce(sum, Reduce::kSum);
  std::vector<double> seconds = {comm.Now() - begin};
  comm.AllReduce(seconds, Reduce::kMax);
  if (comm.rank() == 0) {
    fmt::print("{{\"ranks\":{},\"sum\":{},\"seconds\":{:.9f}}}\n", comm.size(), sum[0], seconds[0]);
  }
}

int Main(int argc, char** argv) {
  return ExitCodeOf([&] {
    Options options;
    CLI::App app("ranks_program");
    AddRanks(app, options.ranks);
    app.add_option("--fault", options.fault);
    app.add_option("--on", options.on);
    app.add_option("--rounds", options.rounds);
    app.add_option("--bytes", options.bytes);
    app.add_option("--work", options.work_seconds);
    app.add_option("--pids", options.pids);
    app.add_flag("--links", options.links);
    try {
      app.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
      throw InputError("{}", error.what());
    }
    RunOnRanks(options.ranks, [&](Communicator& comm, int) { Body(options, comm); });
  });
}

}  // namespace
}  // namespace equitile

int main(int argc, char** argv) { return equitile::mpi::End(equitile::Main(argc, argv)); }
