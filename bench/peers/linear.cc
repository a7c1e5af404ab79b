// Linear layers behind C functions, for linear.py.
#include <memory>
#include <string>

#include "bench/peers/peers.h"
#include "equitile/kernel/linear/linear.h"
#include "equitile/kernel/target.h"

namespace {

using namespace equitile;

struct Layer {
  Layer(int threads, const float* weights, int64_t in, int64_t out)
      : pool(threads), packed(PackedLinearBytes(in, out, WeightType::kF32)) {
    PackLinear(ConstView(weights, {out, in}), WeightType::kF32, packed.span(), pool);
  }

  ThreadPool pool;
  Workspace workspace;
  AlignedBuffer<std::byte> packed;
};

}  // namespace

extern "C" {

const char* equitile_error() { return LastError().c_str(); }

const char* equitile_target() {
  static const std::string name(TargetName(ActiveTarget()));
  return name.c_str();
}

// weights: [out][in]. Null on failure.
void* equitile_linear_new(int threads, const float* weights, int64_t in, int64_t out) {
  std::unique_ptr<Layer> layer;
  Succeeds([&] {
    ApplyTargetFromEnvironment();
    layer = std::make_unique<Layer>(threads, weights, in, out);
  });
  return layer.release();
}

// x: [tokens][in], bias: [out] or null, y: [tokens][out]. 0 on failure.
int equitile_linear_run(void* handle, const float* x, int64_t tokens, const float* bias, float* y) {
  return Succeeds([&] {
    Layer& layer = *static_cast<Layer*>(handle);
    LinearArgs args;
    args.weights = PackedLinear::View(layer.packed.span());
    args.x = ConstView(x, {tokens, args.weights.In()});
    if (bias != nullptr) args.epilogue.bias = {bias, static_cast<size_t>(args.weights.Out())};
    args.y = View(y, {tokens, args.weights.Out()});
    Linear(args, layer.pool, layer.workspace);
  });
}

void equitile_linear_delete(void* handle) { delete static_cast<Layer*>(handle); }

}  // extern "C"
