// Which checkpoint a command means when it is not told.
#pragma once

#include <filesystem>
#include <string>

namespace equitile {

// `flag` if it is not empty; else EQUITILE_MODEL; else wan-mini from the installed share folder,
// the folder models/ here, or that of the source tree the program was built in. Throws InputError
// where there is none of them.
std::filesystem::path FindModel(const std::string& flag);

}  // namespace equitile
