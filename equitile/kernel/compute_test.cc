#include "equitile/kernel/compute.h"

#include <gtest/gtest.h>

#include "equitile/base/error.h"

namespace equitile {
namespace {

TEST(Compute, NamesParseBack) {
  for (Compute compute : {Compute::kF32, Compute::kInt16, Compute::kInt8})
    EXPECT_EQ(ParseCompute(ComputeName(compute)), compute);
  EXPECT_THROW(ParseCompute("int4"), InputError);
  EXPECT_THROW(ParseCompute(""), InputError);
}

}  // namespace
}  // namespace equitile
