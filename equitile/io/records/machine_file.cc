#include "equitile/io/records/machine_file.h"

#include "equitile/io/json_value.h"

namespace equitile {
namespace {

constexpr int64_t kVersion = 1;
constexpr double kHuge = 1e18, kTiny = 1e-18;  // rates and times outside are mistakes

}  // namespace

std::string MachineFileText(const Machine& machine) {
  Json json = {{"version", kVersion},
               {"target", machine.target},
               {"threads", machine.threads},
               {"peak_gflops", machine.peak_gflops},
               {"pack_bytes_per_second", machine.pack_bytes_per_second},
               {"kernel", Json::array()},
               {"links", Json::array()}};
  if (machine.launch_seconds > 0) json["launch_seconds"] = machine.launch_seconds;
  for (const KernelRate& rate : machine.kernel) {
    json["kernel"].push_back({{"head_dim", rate.head_dim},
                              {"block", rate.block},
                              {"dtype", rate.dtype},
                              {"gflops", rate.gflops},
                              {"row_seconds", rate.row_seconds}});
  }
  for (const LinearRate& rate : machine.linear)
    json["linear"].push_back({{"dtype", rate.dtype}, {"gflops", rate.gflops}});
  for (const NamedLink& named : machine.links) {
    json["links"].push_back({{"class", named.name},
                             {"latency_seconds", named.link.latency_seconds},
                             {"bytes_per_second", named.link.bytes_per_second}});
  }
  if (!machine.node_of.empty()) json["node_of"] = machine.node_of;
  return JsonText(json, 2) + "\n";
}

Machine ParseMachineFile(std::string_view text, std::string_view name) {
  const Json document = ParseJson(text, name);
  const JsonValue root(document, name);
  root.CheckKeys({"version", "target", "threads", "peak_gflops", "pack_bytes_per_second",
                  "launch_seconds", "kernel", "linear", "links", "node_of"});
  if (root["version"].Integer(0, INT32_MAX) != kVersion)
    root["version"].Fail("this program reads version {}", kVersion);
  Machine machine{.target = root["target"].Text(),
                  .threads = root["threads"].Integer(1, INT32_MAX),
                  .peak_gflops = root["peak_gflops"].Number(0, kHuge),
                  .pack_bytes_per_second = 0,
                  .launch_seconds = 0,
                  .kernel = {},
                  .linear = {},
                  .links = {},
                  .node_of = {}};
  if (const auto pack = root.Find("pack_bytes_per_second"))
    machine.pack_bytes_per_second = pack->Number(0, kHuge);
  if (const auto launch = root.Find("launch_seconds"))
    machine.launch_seconds = launch->Number(0, kHuge);
  const JsonValue kernel = root["kernel"];
  for (int64_t i = 0; i < kernel.Size(); ++i) {
    const JsonValue rate = kernel.At(i);
    rate.CheckKeys({"head_dim", "block", "dtype", "gflops", "row_seconds"});
    machine.kernel.push_back({.head_dim = rate["head_dim"].Integer(1, INT32_MAX),
                              .block = rate["block"].Integer(1, INT32_MAX),
                              .dtype = rate["dtype"].Text(),
                              .gflops = rate["gflops"].Number(kTiny, kHuge),
                              .row_seconds = rate["row_seconds"].Number(0, kHuge)});
  }
  if (const auto linear = root.Find("linear")) {
    for (int64_t i = 0; i < linear->Size(); ++i) {
      const JsonValue rate = linear->At(i);
      rate.CheckKeys({"dtype", "gflops"});
      machine.linear.push_back(
          {.dtype = rate["dtype"].Text(), .gflops = rate["gflops"].Number(kTiny, kHuge)});
    }
  }
  const JsonValue links = root["links"];
  for (int64_t i = 0; i < links.Size(); ++i) {
    const JsonValue link = links.At(i);
    link.CheckKeys({"class", "latency_seconds", "bytes_per_second"});
    const std::string link_class = link["class"].Text();
    if (link_class != "network" && link_class != "node" && link_class != "cable")
      link["class"].Fail("must be network, node or cable");
    machine.links.push_back(
        {.name = link_class,
         .link = {.latency_seconds = link["latency_seconds"].Number(0, kHuge),
                  .bytes_per_second = link["bytes_per_second"].Number(kTiny, kHuge)}});
  }
  if (const auto nodes = root.Find("node_of")) {
    for (int64_t i = 0; i < nodes->Size(); ++i)
      machine.node_of.push_back(static_cast<int32_t>(nodes->At(i).Integer(0, nodes->Size() - 1)));
  }
  return machine;
}

void WriteMachineFile(const std::filesystem::path& path, const Machine& machine) {
  WriteTextFile(path, MachineFileText(machine));
}

Machine ReadMachineFile(const std::filesystem::path& path) {
  return ParseMachineFile(ReadTextFile(path), path.string());
}

}  // namespace equitile
