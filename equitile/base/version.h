// Which equitile this is.
#pragma once

namespace equitile {

const char* Version();  // "0.2.0"

}  // namespace equitile
