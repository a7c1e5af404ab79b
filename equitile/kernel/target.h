// Which SIMD instruction set the kernels use. One binary holds all of them; the best that the
// machine has is used unless another is forced, for tests, or because a rank elsewhere has none
// with the same bits.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

namespace equitile {

// From weakest to strongest on x86; kNeon is the one of arm64.
enum class Target { kPortable, kSse4, kAvx2, kAvx512, kNeon };

std::string_view TargetName(Target target);  // "portable", "sse4", "avx2", "avx512", "neon"
Target ParseTarget(std::string_view name);   // throws InputError, naming the known ones

// What decides bits: "fma" for avx2 and avx512, which give the same ones, else the target's name.
std::string_view ArithmeticName(Target target);
// Also takes the names of targets, which records of before 0.3.0 hold; throws InputError.
std::string_view ParseArithmetic(std::string_view name);
std::optional<Target> TargetOf(std::string_view arithmetic);  // the strongest supported one

std::vector<Target> CompiledTargets();  // in this binary, weakest first
bool TargetSupported(Target target);    // compiled in, and this machine can run it
Target ActiveTarget();                  // asked from the code that really runs

// For the whole process; not while kernels run. Throws InputError where the target is not
// supported.
void SetTarget(Target target);

// How integers are multiplied, from slowest to fastest: pairs of int16 as every target can; as
// AVX-512 VNNI does, four bytes to a word; bytes in the tiles of AMX, where int16 goes on as with
// VNNI. The bits are the same. On avx512 it is the fastest that the machine has, unless the
// environment asks for another ("avx512" alone, "avx512vnni", "avx512amx"); SetTarget decides it
// anew. Other targets put the same products together from theirs when told to, slowly: so tests
// walk every way on any machine.
enum class IntegerProducts { kPairs, kVnni, kAmx };

bool ProductsSupported(IntegerProducts products);  // by the active target, here
IntegerProducts ActiveProducts();
void SetProducts(IntegerProducts products);  // as SetTarget

// The active target's name, and on avx512 that of the instructions for integers: "avx512vnni".
std::string_view ActiveTargetName();

void ApplyTargetFromEnvironment();  // EQUITILE_TARGET, where it is set

}  // namespace equitile
