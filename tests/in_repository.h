// Where the files that tests read lie.
#pragma once

#include <string>

namespace equitile {

// InRepository("models/wan-mini"): the absolute path of a file or folder of the repository. Only
// the source of this function is compiled with a path in it: all other objects are the same in
// every clone, and ccache finds them.
std::string InRepository(const std::string& path);

}  // namespace equitile
