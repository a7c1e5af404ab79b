#include "apps/cli/model_path.h"

#include <fmt/ranges.h>

#include <cstdlib>
#include <vector>

#include "equitile/base/error.h"

namespace equitile {
namespace {

namespace fs = std::filesystem;

// bin/equitile -> share/equitile/models; build/release/apps/equitile -> models.
std::vector<fs::path> Places() {
  std::error_code ignored;
  const fs::path folder = fs::read_symlink("/proc/self/exe", ignored).parent_path();
  std::vector<fs::path> places;
  if (!folder.empty()) places.push_back(folder.parent_path() / "share/equitile/models/wan-mini");
  places.push_back("models/wan-mini");
  if (!folder.empty()) {
    places.push_back(folder.parent_path().parent_path().parent_path() / "models/wan-mini");
  }
  return places;
}

}  // namespace

fs::path FindModel(const std::string& flag) {
  if (!flag.empty()) return flag;
  if (const char* variable = std::getenv("EQUITILE_MODEL"); variable != nullptr && *variable != 0) {
    return variable;
  }
  std::vector<std::string> looked;
  for (const fs::path& place : Places()) {
    std::error_code ignored;
    if (fs::is_directory(place, ignored)) return place;
    looked.push_back(place.string());
  }
  throw InputError("no model found in {}; name one with -m DIR or EQUITILE_MODEL",
                   fmt::join(looked, ", "));
}

}  // namespace equitile
