// `equitile bench machine`: the rates that plans are made from, as a file.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <memory>

#include "apps/cli/commands.h"
#include "apps/cli/flags.h"
#include "apps/cli/ranks.h"
#include "apps/cli/table.h"
#include "equitile/base/error.h"
#include "equitile/exec/agree.h"
#include "equitile/exec/calibrate.h"
#include "equitile/io/atomic_write.h"
#include "equitile/io/records/machine_file.h"
#include "equitile/kernel/rows/strips.h"

namespace equitile {
namespace {

constexpr const char* kExamples =
    "Examples:\n"
    "  equitile bench machine --out machine.json               # one rank: the kernel\n"
    "  mpirun -n 2 equitile bench machine --out machine.json   # and the link between ranks\n"
    "  mpirun -n 8 equitile bench machine --out machine.json   # on two nodes: links inside and\n"
    "                                                          # between, and what ranks share\n"
    "  equitile plan --mask mask.npy --for-ranks 8 --machine machine.json";

struct Request {
  CalibrationOptions what{.head_dims = {32, 64, 128},
                          .blocks = {64},
                          .computes = {Compute::kF32, Compute::kInt16, Compute::kInt8},
                          .links = true,
                          .linear = true};
  std::string out;
  bool json = false;
  RanksRequest on;
};

void Print(const Machine& machine) {
  fmt::print("{}, {} thread{}, peak {:.1f} GFLOP/s\n", machine.target, machine.threads,
             machine.threads == 1 ? "" : "s", machine.peak_gflops);
  Table table({{"compute"}, {"head_dim"}, {"block"}, {"gflops"}, {"fraction_of_peak"}, {"row_us"}});
  for (const KernelRate& rate : machine.kernel) {
    table.Add({rate.dtype, rate.head_dim, rate.block, Cell(rate.gflops, 1),
               Cell(rate.gflops / machine.peak_gflops, 3), Cell(rate.row_seconds * 1e6, 2)});
  }
  fmt::print("{}", table.ToText(Terminal::Of(stdout)));
  for (const LinearRate& rate : machine.linear) {
    fmt::print("linear layers in {}: {:.1f} GFLOP/s, {:.2f} × f32\n", rate.dtype, rate.gflops,
               rate.gflops / machine.linear.front().gflops);
  }
  for (const NamedLink& named : machine.links)
    fmt::print("link \"{}\": {}\n", named.name, LinkText(named.link));
  if (!machine.node_of.empty()) fmt::print("nodes {}\n", fmt::join(machine.node_of, ","));
}

void Run(const Request& request) {
  if (!request.out.empty() && IsFirstProcess()) CheckWritable(request.out);
  RunOnRanks(request.on, [&](Communicator& comm, int threads) {
    AgreeOnArithmetic(comm);
    ThreadPool pool(threads);
    const Machine machine = Calibrate(comm, pool, request.what);
    if (comm.rank() != 0) return;
    if (!request.out.empty()) WriteMachineFile(request.out, machine);
    if (request.json) {
      PrintJson(Json::parse(MachineFileText(machine)));
    } else {
      Print(machine);
    }
  });
}

}  // namespace

void RegisterBenchMachine(CLI::App& parent) {
  CLI::App& app = AddCommand(parent, "machine", "kernel rates and links, for plans: machine.json");
  auto request = std::make_shared<Request>();
  AddNumbers(app, "--head-dim", request->what.head_dims, {.min = kHeadDimStep, .max = kMaxHeadDim},
             "numbers per token and head");
  AddNumbers(app, "--block", request->what.blocks, {.min = kMinBlockTokens, .max = kMaxBlockTokens},
             "tokens per block");
  app.add_option("--out", request->out, "write the rates here")->type_name("FILE");
  AddRanks(app, request->on);
  AddJson(app, request->json);
  app.footer(kExamples);
  app.callback([request] { Run(*request); });
}

}  // namespace equitile
