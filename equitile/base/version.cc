#include "equitile/base/version.h"

namespace equitile {

const char* Version() { return EQUITILE_VERSION; }

}  // namespace equitile
