// Measured rates of a machine as JSON.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "equitile/plan/predict/machine.h"

namespace equitile {

// {"version": 1, "target", "threads", "peak_gflops",
// "pack_bytes_per_second", "launch_seconds" (may be missing), "kernel": [{"head_dim", "block",
// "dtype", "gflops", "row_seconds"}],
//  "links": [{"class": "network" | "node" | "cable", "latency_seconds", "bytes_per_second"}],
//  "node_of": [node of every rank that measured the links] (may be missing)}
std::string MachineFileText(const Machine& machine);
Machine ParseMachineFile(std::string_view text, std::string_view name);  // throws InputError

void WriteMachineFile(const std::filesystem::path& path, const Machine& machine);
Machine ReadMachineFile(const std::filesystem::path& path);

}  // namespace equitile
