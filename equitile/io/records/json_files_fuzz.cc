// Any bytes as each of our JSON files and as tokenizer.json: taken or refused; what is taken and
// written again is the same.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "equitile/base/error.h"
#include "equitile/io/records/machine_file.h"
#include "equitile/io/records/pattern_file.h"
#include "equitile/io/records/plan_file.h"
#include "equitile/io/records/settings_file.h"
#include "equitile/io/records/tokenizer_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace equitile;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto attempt = [](auto&& read) {
    try {
      read();
    } catch (const InputError&) {
    }
  };
  attempt([&] {
    const std::string written = PlanFileText(ParsePlanFile(text, "fuzz"));
    if (PlanFileText(ParsePlanFile(written, "fuzz")) != written) std::abort();
  });
  attempt([&] {
    const std::string written = MachineFileText(ParseMachineFile(text, "fuzz"));
    if (MachineFileText(ParseMachineFile(written, "fuzz")) != written) std::abort();
  });
  attempt([&] {
    const std::string written = PatternFileText(ParsePatternFile(text, "fuzz"));
    if (PatternFileText(ParsePatternFile(written, "fuzz")) != written) std::abort();
  });
  LooksLikePatternFile(text);
  attempt([&] { ParseTokenizer(text, "fuzz"); });
  attempt([&] { ParseSettings(text, "fuzz"); });
  return 0;
}
