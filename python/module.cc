// The compiled half of the Python package: numbers and text only. python/equitile/__init__.py gives
// them names, types and documentation.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <string>
#include <utility>

#include "equitile/base/error.h"
#include "equitile/base/timer.h"
#include "equitile/base/topology.h"
#include "equitile/base/version.h"
#include "equitile/exec/wire.h"
#include "equitile/io/records/machine_file.h"
#include "equitile/io/records/plan_file.h"
#include "equitile/io/records/plan_report_json.h"
#include "equitile/kernel/attention/attention.h"
#include "equitile/kernel/target.h"
#include "equitile/pattern/mask_hash.h"
#include "equitile/plan/core/home_map.h"
#include "equitile/plan/core/program.h"
#include "equitile/plan/planners/planner.h"
#include "equitile/plan/planners/report.h"
#include "python/pipeline.h"
#include "python/worker_threads.h"

namespace py = pybind11;
using namespace equitile;

namespace {

// The part of DLPack (github.com/dmlc/dlpack, ABI version 0) that is read here.
struct DlTensor {
  void* data;
  int32_t device_type, device_id;
  int32_t ndim;
  uint8_t code, bits;
  uint16_t lanes;
  int64_t* shape;
  int64_t* strides;  // in elements; null: contiguous
  uint64_t byte_offset;
};
struct DlManagedTensor {
  DlTensor tensor;
  void* manager;
  void (*deleter)(DlManagedTensor*);
};
struct DlDelete {
  void operator()(DlManagedTensor* managed) const {
    if (managed->deleter != nullptr) managed->deleter(managed);
  }
};

DType DTypeOf(int code, int bits) {
  if (code == 2 && bits == 32) return DType::kF32;
  if (code == 2 && bits == 16) return DType::kF16;
  if (code == 4 && bits == 16) return DType::kBF16;
  throw InputError("[python] an array's dtype is neither float32, float16 nor bfloat16");
}

// NumPy 2 laid out its types anew: pybind11 before 2.12 would read them as other ones.
void CheckNumpyFits() {
#if PYBIND11_VERSION_HEX < 0x020C0000
  const auto version = py::module_::import("numpy").attr("__version__").cast<std::string>();
  if (std::stoi(version) < 2) return;
  throw py::import_error(
      fmt::format("equitile was compiled with pybind11 {}.{}, which does not know NumPy {}; use "
                  "numpy<2, or compile with pybind11>=2.12",
                  PYBIND11_VERSION_MAJOR, PYBIND11_VERSION_MINOR, version));
#endif
}

// A rank-4 array of any library, viewed without a copy for as long as this lives.
class Array {
 public:
  explicit Array(const py::object& object) {
    if (py::isinstance<py::array>(object)) {
      ViewNumpy(py::reinterpret_borrow<py::array>(object));
    } else {
      ViewDlPack(object);
    }
  }
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;

  const View& view() const { return view_; }

 private:
  void ViewNumpy(const py::array& array) {
    const char kind = array.dtype().kind();
    const auto bytes = static_cast<int64_t>(array.itemsize());
    const DType dtype = DTypeOf(kind == 'f' ? 2 : -1, static_cast<int>(bytes) * 8);
    if (!array.dtype().attr("isnative").cast<bool>())
      throw InputError(
          "[python] an array's bytes are swapped; use array.astype(array.dtype.newbyteorder('='))");
    Shape shape;
    Strides strides{};
    CheckRank(array.ndim());
    for (py::ssize_t i = 0; i < array.ndim(); ++i) {
      shape.Append(array.shape(i));
      if (array.strides(i) % bytes != 0)
        throw InputError("[python] an array's strides are not whole elements");
      strides[static_cast<size_t>(i)] = array.strides(i) / bytes;
    }
    keep_ = array;
    view_ = View(const_cast<void*>(array.data()), dtype, shape, strides);
  }

  void ViewDlPack(const py::object& object) {
    if (!py::hasattr(object, "__dlpack__"))
      throw InputError("[python] neither a NumPy array nor an object with __dlpack__");
    const py::capsule capsule = object.attr("__dlpack__")();
    auto* managed = static_cast<DlManagedTensor*>(PyCapsule_GetPointer(capsule.ptr(), "dltensor"));
    if (managed == nullptr) throw py::error_already_set();
    PyCapsule_SetName(capsule.ptr(), "used_dltensor");
    managed_.reset(managed);  // ours to delete now
    const DlTensor& tensor = managed_->tensor;
    if (tensor.device_type != 1) throw InputError("[python] an array is not in CPU memory");
    CheckRank(tensor.ndim);
    Shape shape;
    for (int i = 0; i < tensor.ndim; ++i) shape.Append(tensor.shape[i]);
    Strides strides = ContiguousStrides(shape);
    if (tensor.strides != nullptr)
      std::copy(tensor.strides, tensor.strides + tensor.ndim, strides.begin());
    view_ = View(static_cast<char*>(tensor.data) + tensor.byte_offset,
                 DTypeOf(tensor.code, tensor.bits), shape, strides);
  }

  static void CheckRank(int64_t rank) {
    if (rank != 4) throw InputError("[python] an array has {} dimensions; q, k and v have 4", rank);
  }

  std::unique_ptr<DlManagedTensor, DlDelete> managed_;
  py::object keep_;
  View view_;
};

using MaskArray = py::array_t<uint8_t, py::array::c_style>;

// mask: [batch, heads, q_blocks, kv_blocks], 0 or not.
BlockMask MaskOf(const MaskArray& mask, const BlockGrid& grid) {
  BlockMask bits({mask.shape(0), mask.shape(1)}, grid);
  if (mask.shape(2) != bits.QBlocks() || mask.shape(3) != bits.KvBlocks()) {
    throw InputError("[python] the mask has {} x {} blocks; {} x {} are asked for", mask.shape(2),
                     mask.shape(3), bits.QBlocks(), bits.KvBlocks());
  }
  const uint8_t* at = mask.data();
  for (int64_t lane = 0; lane < bits.LaneCount(); ++lane) {
    for (int64_t q = 0; q < bits.QBlocks(); ++q) {
      for (int64_t kv = 0; kv < bits.KvBlocks(); ++kv) {
        if (*at++ != 0) bits.Set(lane, q, kv);
      }
    }
  }
  return bits;
}

// All arrays [batch, tokens, heads, head_dim]; lse [batch, heads, q_tokens].
void RunAttention(const py::object& q, const py::object& k, const py::object& v,
                  const py::object& out, py::array_t<float> lse,
                  const std::optional<MaskArray>& mask, int64_t block, float scale, int threads,
                  const std::string& compute) {
  const Array q_array(q), k_array(k), v_array(v), out_array(out);
  const View& view = q_array.view();
  const BlockGrid grid{view.Extent(1), k_array.view().Extent(1), block};
  CheckBlockGrid(grid);
  const Lanes lanes{view.Extent(0), view.Extent(2)};
  if (mask && (mask->shape(0) != lanes.batch || mask->shape(1) != lanes.heads ||
               mask->shape(2) != grid.QBlocks() || mask->shape(3) != grid.KvBlocks())) {
    throw InputError(
        "[python] the mask has {} x {} lanes of {} x {} blocks; the arrays ask for {} x {} of {} x "
        "{}",
        mask->shape(0), mask->shape(1), mask->shape(2), mask->shape(3), lanes.batch, lanes.heads,
        grid.QBlocks(), grid.KvBlocks());
  }
  const AttentionRows rows =
      mask ? AttentionRows::FromMask(MaskOf(*mask, grid)) : AttentionRows::Dense(lanes, grid);
  AttentionArgs args;
  args.lanes = lanes;
  args.grid = grid;
  args.head_dim = view.Extent(3);
  args.scale = scale;
  args.rows = &rows;
  args.q = ConstView(view);
  args.k = ConstView(k_array.view());
  args.v = ConstView(v_array.view());
  args.out = out_array.view();
  args.lse = lse.mutable_data();
  args.compute = ParseCompute(compute);
  py::gil_scoped_release release;
  // Threads and memory of the calling Python thread, kept for its next call.
  thread_local WorkerThreads workers;
  thread_local Workspace workspace;
  Attention(args, workers.Pool(threads == 0 ? DefaultThreads() : threads), workspace);
}

struct PlanArgs {
  int32_t ranks;
  std::string planner;
  int64_t block, head_dim;
  std::string compute;
  bool reproducible;
  std::string machine;  // the text of a machine file; "": none
  std::optional<double> kernel_gflops;
  std::string link, node_link;
  int32_t node_size;
  std::vector<double> speeds;
  double reward;
  std::string dbsp_blocks, dbsp_head_order, dbsp_balance;
};

template <typename Value>
Value OneOf(const char* name, const std::string& text,
            std::initializer_list<std::pair<const char*, Value>> known) {
  std::string names;
  for (const auto& [key, value] : known) {
    if (text == key) return value;
    names += fmt::format("{}{}", names.empty() ? "" : ", ", key);
  }
  throw InputError("[python] {} '{}': use one of {}", name, text, names);
}

// Rates come from the machine, what is said beside it counts more.
PlanOptions OptionsOf(const PlanArgs& args, const BlockGrid& grid) {
  PlanOptions options;
  options.ranks = args.ranks;
  options.reproducible = args.reproducible;
  options.dbsp.reward = args.reward;
  options.dbsp.blocks =
      OneOf<DbspBlocks>("dbsp_blocks", args.dbsp_blocks,
                        {{"greedy", DbspBlocks::kBiasedGreedy}, {"swap", DbspBlocks::kSwap}});
  options.dbsp.head_order = OneOf<DbspHeadOrder>(
      "dbsp_head_order", args.dbsp_head_order,
      {{"assignment", DbspHeadOrder::kAssignment}, {"weight", DbspHeadOrder::kWeight}});
  options.dbsp.balance = OneOf<DbspBalance>("dbsp_balance", args.dbsp_balance,
                                            {{"both", DbspBalance::kBoth},
                                             {"heads", DbspBalance::kHeads},
                                             {"blocks", DbspBalance::kBlocks}});
  Cluster& cluster = options.cluster;
  cluster.wire = WireFormatOf(args.head_dim, DType::kF32, ParseCompute(args.compute));
  if (!args.machine.empty()) {
    const Machine machine = ParseMachineFile(args.machine, "machine");
    if (const std::string missing = MissingRates(machine, "machine", args.compute);
        !missing.empty() && PyErr_WarnEx(PyExc_UserWarning, missing.c_str(), 1) != 0) {
      throw py::error_already_set();
    }
    ApplyMachine(machine, grid, options, args.compute);
    if (std::ssize(machine.node_of) == options.ranks) SetNodes(machine.node_of, cluster);
  }
  if (args.kernel_gflops) cluster.gflops = *args.kernel_gflops;
  if (!args.link.empty()) cluster.link = cluster.node_link = ParseLink(args.link);
  if (!args.node_link.empty()) cluster.node_link = ParseLink(args.node_link);
  if (args.node_size < 0)
    throw InputError("[python] node_size {}: must not be negative", args.node_size);
  if (args.node_size > 0) cluster.node_of = EvenNodes(options.ranks, args.node_size);
  cluster.speeds = args.speeds;
  CheckCluster(cluster, options.ranks);
  if (!args.machine.empty()) options.cost = CostInPicoseconds(cluster, grid);
  return options;
}

// The blocks of a transfer that one home sends or gets back, as far as they follow each other.
struct HomePart {
  int32_t home;
  int64_t begin, end, tokens;
};

std::vector<HomePart> HomeParts(const HomeMap& homes, Side side, const LaneBlocks& blocks) {
  std::vector<HomePart> parts;
  for (int64_t block = blocks.begin; block < blocks.end; ++block) {
    homes.ForEachPart(side, blocks.lane, {block, block + 1}, [&](int32_t home, int64_t tokens) {
      const auto last = std::find_if(parts.rbegin(), parts.rend(),
                                     [&](const HomePart& part) { return part.home == home; });
      if (last != parts.rend() && last->end == block) {
        last->end = block + 1;
        last->tokens += tokens;
      } else {
        parts.push_back({home, block, block + 1, tokens});
      }
    });
  }
  return parts;
}

// [(stage, cargo, from, to, lane, first block, end, tokens)]; what stays where it is, is left out.
py::list TransfersOf(const Program& program) {
  constexpr const char* kCargo[] = {"q", "kv", "o", "means"};
  const HomeMap homes(program.problem);
  py::list list;
  const auto add = [&](size_t stage, const Transfer& transfer, const LaneBlocks& blocks) {
    const bool is_query = transfer.cargo == Cargo::kQ || transfer.cargo == Cargo::kO;
    const Side side = is_query ? Side::kQuery : Side::kKey;
    std::vector<HomePart> parts = {
        {kHome, blocks.begin, blocks.end, homes.BlockTokens(side, blocks.blocks())}};
    if (transfer.from == kHome || transfer.to == kHome) parts = HomeParts(homes, side, blocks);
    for (const HomePart& part : parts) {
      const int32_t from = transfer.from == kHome ? part.home : transfer.from;
      const int32_t to = transfer.to == kHome ? part.home : transfer.to;
      if (from == to) continue;
      list.append(py::make_tuple(stage, kCargo[static_cast<size_t>(transfer.cargo)], from, to,
                                 blocks.lane, part.begin, part.end, part.tokens));
    }
  };
  for (size_t stage = 0; stage < program.stages.size(); ++stage) {
    for (const Span& span : {program.stages[stage].inputs, program.stages[stage].returns}) {
      for (const Transfer& transfer : program.TransfersOf(span)) {
        for (const LaneBlocks& blocks : program.BlocksOf(transfer.blocks))
          add(stage, transfer, blocks);
      }
    }
  }
  return list;
}

// (report as JSON, plan file as JSON, transfers)
py::tuple Describe(PlanReport report, const BlockMask& mask, const CostModel& cost) {
  if (report.chosen.empty()) report.chosen = report.plan.planner().Text();
  const PlanFile file = MakePlanFile(report.plan, HashMask(mask), cost, report.work_per_rank);
  return py::make_tuple(PlanReportJson(report, /*details=*/true).dump(), PlanFileText(file),
                        TransfersOf(Lower(report.plan, mask)));
}

py::tuple MakePlanOf(const MaskArray& array, const PlanArgs& args) {
  const BlockMask mask =
      MaskOf(array, {array.shape(2) * args.block, array.shape(3) * args.block, args.block});
  const PlanOptions options = OptionsOf(args, mask.grid());
  const PlannerSpec spec = ParsePlanner(args.planner, options.ranks);
  const Stopwatch watch;
  RowCounts rows(mask);
  MadePlan made = MakePlan(spec, mask, rows, options);
  const Score score =
      ScorePlan(made.plan, mask, rows, options.cost, options.cluster, std::move(made.work));
  const double seconds = watch.Seconds();
  PlanReport report = MakeReport(made.plan, score, mask, rows, options);
  report.planner = spec.Text();
  report.plan_seconds = seconds;
  return Describe(std::move(report), mask, options.cost);
}

// A stored plan for the mask that it was made for.
py::tuple ReadPlanOf(const std::string& text, const MaskArray& array) {
  const PlanFile file = ParsePlanFile(text, "the plan");
  if (!file.HashMatches() || !file.homes_match)
    throw InputError("[python] the plan: was changed since it was made; its hash does not fit");
  const Plan plan(file.parts);
  const BlockMask mask = MaskOf(array, plan.problem().grid);
  CheckMaskFits(plan.problem(), mask);
  if (HashMask(mask) != file.mask_hash)
    throw InputError("[python] the plan: was made for another mask");
  PlanOptions options;
  options.ranks = plan.ranks();
  options.cost = file.cost;
  RowCounts rows(mask);
  const Score score = ScorePlan(plan, mask, rows, options.cost, options.cluster);
  PlanReport report = MakeReport(plan, score, mask, rows, options);
  report.planner = plan.planner().Text();
  return Describe(std::move(report), mask, options.cost);
}

}  // namespace

PYBIND11_MODULE(_core, module) {
  CheckNumpyFits();
  py::register_exception_translator([](std::exception_ptr thrown) {
    try {
      if (thrown) std::rethrow_exception(thrown);
    } catch (const InputError& error) {
      PyErr_SetString(PyExc_ValueError, error.what());
    } catch (const Error& error) {
      PyErr_SetString(PyExc_RuntimeError, error.what());
    }
  });
  ApplyTargetFromEnvironment();
  module.def("attention", &RunAttention, py::arg("q"), py::arg("k"), py::arg("v"), py::arg("out"),
             py::arg("lse"), py::arg("mask"), py::arg("block"), py::arg("scale"),
             py::arg("threads"), py::arg("compute"));
  module.def(
      "plan",
      [](const MaskArray& mask, int32_t ranks, const std::string& planner, int64_t block,
         int64_t head_dim, const std::string& compute, bool reproducible,
         const std::string& machine, std::optional<double> kernel_gflops, const std::string& link,
         int32_t node_size, const std::string& node_link, const std::vector<double>& speeds,
         double reward, const std::string& dbsp_blocks, const std::string& dbsp_head_order,
         const std::string& dbsp_balance) {
        return MakePlanOf(mask, {.ranks = ranks,
                                 .planner = planner,
                                 .block = block,
                                 .head_dim = head_dim,
                                 .compute = compute,
                                 .reproducible = reproducible,
                                 .machine = machine,
                                 .kernel_gflops = kernel_gflops,
                                 .link = link,
                                 .node_link = node_link,
                                 .node_size = node_size,
                                 .speeds = speeds,
                                 .reward = reward,
                                 .dbsp_blocks = dbsp_blocks,
                                 .dbsp_head_order = dbsp_head_order,
                                 .dbsp_balance = dbsp_balance});
      },
      py::arg("mask"), py::arg("ranks"), py::arg("planner"), py::arg("block"), py::arg("head_dim"),
      py::arg("compute"), py::arg("reproducible"), py::arg("machine"), py::arg("kernel_gflops"),
      py::arg("link"), py::arg("node_size"), py::arg("node_link"), py::arg("speeds"),
      py::arg("reward"), py::arg("dbsp_blocks"), py::arg("dbsp_head_order"),
      py::arg("dbsp_balance"));
  module.def("read_plan", &ReadPlanOf, py::arg("text"), py::arg("mask"));
  module.def("version", [] { return std::string(Version()); });
  DefinePipeline(module);
  module.def("target", [] { return std::string(TargetName(ActiveTarget())); });
}
