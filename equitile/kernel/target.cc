#include "equitile/kernel/target.h"

#include <cstdint>
#include <cstdlib>

#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "equitile/base/error.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "equitile/kernel/target.cc"
#include "hwy/foreach_target.h"

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace equitile {
namespace HWY_NAMESPACE {

int64_t RunningTarget() { return HWY_TARGET; }

}  // namespace HWY_NAMESPACE
}  // namespace equitile
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace equitile {
namespace {

HWY_EXPORT(RunningTarget);

struct KnownTarget {
  Target target;
  std::string_view name;
  std::string_view arithmetic;
  int64_t bits;  // Highway's; any of them
};

constexpr KnownTarget kKnown[] = {
    {Target::kPortable, "portable", "portable", HWY_SCALAR | HWY_EMU128},
    {Target::kSse4, "sse4", "sse4", HWY_SSE4},
    {Target::kAvx2, "avx2", "fma", HWY_AVX2},
    {Target::kAvx512, "avx512", "fma", HWY_AVX3},
    {Target::kNeon, "neon", "neon", HWY_NEON},
};

constexpr int64_t AllKnownBits() {
  int64_t bits = 0;
  for (const KnownTarget& known : kKnown) bits |= known.bits;
  return bits;
}
static_assert((HWY_TARGETS & ~AllKnownBits()) == 0,
              "Highway compiles a target that has no name here; see EQUITILE_TARGETS in cmake");

// Of avx512, as EQUITILE_TARGET names it with its instructions for integers.
struct KnownProducts {
  IntegerProducts products;
  std::string_view name;
};
constexpr KnownProducts kWithProducts[] = {
    {IntegerProducts::kPairs, "avx512"},
    {IntegerProducts::kVnni, "avx512vnni"},
    {IntegerProducts::kAmx, "avx512amx"},
};

const KnownTarget& Known(Target target) {
  for (const KnownTarget& known : kKnown) {
    if (known.target == target) return known;
  }
  EQ_CHECK(false, "unknown target");
}

// What the machine has. Highway's library was built by another compiler and may call its portable
// target by the other name; the portable target always runs.
int64_t MachineBits() {
  static const int64_t bits = hwy::SupportedTargets() | HWY_SCALAR | HWY_EMU128;
  return bits;
}

bool MachineHasVnni() {
#if HWY_ARCH_X86
  return __builtin_cpu_supports("avx512vnni") != 0;
#else
  return false;
#endif
}

// The kernel gives a process the registers of AMX when asked, if it knows them and no thread has a
// signal stack too small for them. Threads and forks inherit the permission.
bool AskForAmx() {
#if defined(__x86_64__) && defined(__linux__)
  constexpr unsigned kTileAndInt8 = 1u << 24 | 1u << 25;  // of leaf 7, EDX
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  unsigned a, b, c, d;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (d & kTileAndInt8) == kTileAndInt8 &&
         syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

bool MachineHas(IntegerProducts products) {
  switch (products) {
    case IntegerProducts::kPairs:
      return true;
    case IntegerProducts::kVnni:
      return MachineHasVnni();
    case IntegerProducts::kAmx:
      static const bool has = MachineHasVnni() && AskForAmx();
      return has;
  }
  EQ_CHECK(false, "unknown products");
}

IntegerProducts ProductsOf(Target target) {
  if (target != Target::kAvx512) return IntegerProducts::kPairs;
  if (MachineHas(IntegerProducts::kAmx)) return IntegerProducts::kAmx;
  return MachineHasVnni() ? IntegerProducts::kVnni : IntegerProducts::kPairs;
}

IntegerProducts& ProductsNow() {
  static IntegerProducts products = ProductsOf(ActiveTarget());
  return products;
}

std::string_view NameWith(IntegerProducts products) {
  return kWithProducts[static_cast<size_t>(products)].name;
}

}  // namespace

std::string_view TargetName(Target target) { return Known(target).name; }

Target ParseTarget(std::string_view name) {
  for (const KnownTarget& known : kKnown) {
    if (known.name == name) return known.target;
  }
  throw InputError(
      "[kernel] unknown SIMD target '{}'; use avx512amx, avx512vnni, avx512, avx2, sse4 or "
      "portable",
      name);
}

std::string_view ArithmeticName(Target target) { return Known(target).arithmetic; }

std::string_view ParseArithmetic(std::string_view name) {
  for (const KnownTarget& known : kKnown) {
    if (known.arithmetic == name) return known.arithmetic;
  }
  return ArithmeticName(ParseTarget(name));
}

std::optional<Target> TargetOf(std::string_view arithmetic) {
  std::optional<Target> strongest;
  for (const KnownTarget& known : kKnown) {
    if (known.arithmetic == arithmetic && TargetSupported(known.target)) strongest = known.target;
  }
  return strongest;
}

std::vector<Target> CompiledTargets() {
  std::vector<Target> targets;
  for (const KnownTarget& known : kKnown) {
    if (known.bits & HWY_TARGETS) targets.push_back(known.target);
  }
  return targets;
}

bool TargetSupported(Target target) {
  return (Known(target).bits & HWY_TARGETS & MachineBits()) != 0;
}

Target ActiveTarget() {
  const int64_t running = HWY_DYNAMIC_DISPATCH(RunningTarget)();
  for (const KnownTarget& known : kKnown) {
    if (known.bits & running) return known.target;
  }
  EQ_CHECK(false, "the kernels run on a target without a name: {}", running);
}

void SetTarget(Target target) {
  MachineBits();  // asked before the answer is overridden below
  if (!TargetSupported(target)) {
    throw InputError("[kernel] SIMD target '{}' is not supported by this {}", TargetName(target),
                     (Known(target).bits & HWY_TARGETS) ? "machine" : "build");
  }
  const int64_t bits = Known(target).bits & HWY_TARGETS;
  hwy::SetSupportedTargetsForTest(bits);
  hwy::GetChosenTarget().Update(bits);
  ProductsNow() = ProductsOf(target);
}

bool ProductsSupported(IntegerProducts products) {
  return ActiveTarget() != Target::kAvx512 || MachineHas(products);
}

IntegerProducts ActiveProducts() { return ProductsNow(); }

void SetProducts(IntegerProducts products) {
  if (!ProductsSupported(products)) {
    throw InputError("[kernel] SIMD target '{}' is not supported by this machine",
                     NameWith(products));
  }
  ProductsNow() = products;
}

std::string_view ActiveTargetName() {
  const Target target = ActiveTarget();
  return target == Target::kAvx512 ? NameWith(ActiveProducts()) : TargetName(target);
}

void ApplyTargetFromEnvironment() {
  const char* value = std::getenv("EQUITILE_TARGET");
  if (value == nullptr || *value == '\0') return;
  const std::string_view name = value;
  for (const KnownProducts& known : kWithProducts) {
    if (known.name != name) continue;
    SetTarget(Target::kAvx512);
    return SetProducts(known.products);
  }
  SetTarget(ParseTarget(name));
}

}  // namespace equitile
#endif  // HWY_ONCE
