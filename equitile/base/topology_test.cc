#include "equitile/base/topology.h"

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <map>
#include <string>

namespace equitile {
namespace {

using internal::CgroupCores;
using internal::CoresWithin;
using internal::ParseCfsQuota;
using internal::ParseCpuMax;

class CgroupTree : public testing::Test {
 protected:
  CgroupTree()
      : root_(std::filesystem::path(testing::TempDir()) /
              (std::string("cgroup_") +
               testing::UnitTest::GetInstance()->current_test_info()->name())) {
    std::filesystem::remove_all(root_);
  }
  ~CgroupTree() override { std::filesystem::remove_all(root_); }

  void Write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
  }

  std::filesystem::path root_;
};

TEST(Topology, CpuMax) {
  EXPECT_EQ(ParseCpuMax("max 100000\n"), std::nullopt);
  EXPECT_EQ(ParseCpuMax("150000 100000\n"), 1.5);
  EXPECT_EQ(ParseCpuMax(""), std::nullopt);
  EXPECT_EQ(ParseCpuMax("100000"), std::nullopt);
  EXPECT_EQ(ParseCpuMax("5 0"), std::nullopt);
}

TEST(Topology, CfsQuota) {
  EXPECT_EQ(ParseCfsQuota("-1\n", "100000\n"), std::nullopt);
  EXPECT_EQ(ParseCfsQuota("400000\n", "100000\n"), 4.0);
  EXPECT_EQ(ParseCfsQuota("", ""), std::nullopt);
}

TEST(Topology, QuotaRoundsUpAndNeverBelowOne) {
  EXPECT_EQ(CoresWithin(8, std::nullopt), 8);
  EXPECT_EQ(CoresWithin(8, 2.0), 2);
  EXPECT_EQ(CoresWithin(8, 2.1), 3);
  EXPECT_EQ(CoresWithin(8, 0.2), 1);
  EXPECT_EQ(CoresWithin(8, 64.0), 8);
  EXPECT_EQ(CoresWithin(0, std::nullopt), 1);
}

TEST_F(CgroupTree, TightestOfTheChainV2) {
  Write("a/cpu.max", "300000 100000\n");
  Write("a/b/cpu.max", "max 100000\n");
  Write("a/b/c/cpu.max", "500000 100000\n");
  EXPECT_EQ(CgroupCores(root_, "0::/a/b/c\n"), 3.0);
  EXPECT_EQ(CgroupCores(root_, "0::/elsewhere/x"), std::nullopt);
  EXPECT_EQ(CgroupCores(root_, "0::/\n"), std::nullopt);
}

TEST_F(CgroupTree, ContainerWhoseListedPathIsNotMounted) {
  Write("cpu.max", "200000 100000\n");
  EXPECT_EQ(CgroupCores(root_, "0::/../../kubepods/pod7\n"), 2.0);
  EXPECT_EQ(CgroupCores(root_, "0::/docker/0123\n"), 2.0);
}

TEST_F(CgroupTree, VersionOne) {
  Write("cpu,cpuacct/job/cpu.cfs_quota_us", "250000\n");
  Write("cpu,cpuacct/job/cpu.cfs_period_us", "100000\n");
  const std::string lines = "12:memory:/job\n7:cpu,cpuacct:/job\n1:name=systemd:/job\n0::/\n";
  EXPECT_EQ(CgroupCores(root_, lines), 2.5);
  EXPECT_EQ(CgroupCores(root_, "7:cpuset:/job\n"), std::nullopt);
}

TEST_F(CgroupTree, NonsenseIsNoLimit) {
  Write("cpu.max", "rubbish here\n");
  EXPECT_EQ(CgroupCores(root_, "0::/\nnot a line\n:\n"), std::nullopt);
}

int Ranks(const std::map<std::string, std::string>& environment) {
  return internal::RanksOnNode([&](const char* name) -> const char* {
    const auto it = environment.find(name);
    return it == environment.end() ? nullptr : it->second.c_str();
  });
}

TEST(Topology, RanksOnNode) {
  EXPECT_EQ(Ranks({}), 1);
  EXPECT_EQ(Ranks({{"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}}), 4);
  EXPECT_EQ(Ranks({{"MPI_LOCALNRANKS", "3"}}), 3);
  EXPECT_EQ(Ranks({{"SLURM_NTASKS_PER_NODE", "16"}}), 16);
  EXPECT_EQ(Ranks({{"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}, {"SLURM_NTASKS_PER_NODE", "16"}}), 2);
  EXPECT_EQ(Ranks({{"MPI_LOCALNRANKS", "many"}}), 1);
  EXPECT_EQ(Ranks({{"MPI_LOCALNRANKS", "0"}}), 1);
}

TEST(Topology, ThisMachine) {
  EXPECT_GE(AllowedCores(), 1);
  EXPECT_GE(RanksOnNode(), 1);
  EXPECT_GE(DefaultThreads(), 1);
  EXPECT_LE(DefaultThreads(), AllowedCores());
}

}  // namespace
}  // namespace equitile
