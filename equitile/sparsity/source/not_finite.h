// What a source of masks throws where queries, keys or values are NaN or infinite, and no mask
// could be right. Rules that see numbers alone know neither step nor layer: who calls the source
// adds them.
#pragma once

#include "equitile/base/error.h"

namespace equitile {

class NotFinite : public InputError {
 public:
  NotFinite() : InputError("queries, keys or values are not finite") {}
};

}  // namespace equitile
