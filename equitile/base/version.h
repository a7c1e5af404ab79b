// Which equitile this is.
#pragma once

namespace equitile {

const char* Version();  // "0.3.0"

}  // namespace equitile
