// Any bytes as a JSON config: taken or refused, whatever it is asked for.
#include <cstdint>
#include <string_view>

#include "equitile/base/error.h"
#include "equitile/io/records/config_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace equitile;
  const auto attempt = [](auto&& ask) {
    try {
      ask();
    } catch (const InputError&) {
    }
  };
  attempt([&] {
    const ConfigFile config(std::string_view(reinterpret_cast<const char*>(data), size), "fuzz");
    attempt([&] { config.Integer("a", 1); });
    attempt([&] { config.Number("a", 1); });
    attempt([&] { config.Text("a", ""); });
    attempt([&] { config.Integers("a", {}); });
    attempt([&] { config.Numbers("a", {}); });
    attempt([&] { config.Bools("a", {}); });
    attempt([&] { config.FindTexts("a"); });
    attempt([&] { config.CheckUnused("a"); });
    attempt([&] { config.CheckClass("A"); });
  });
  return 0;
}
