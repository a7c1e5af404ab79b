// equitile.Pipeline: from a prompt to arrays, with the parts that `equitile generate` has.
#pragma once

#include <pybind11/pybind11.h>

namespace equitile {

void DefinePipeline(pybind11::module_& module);

}  // namespace equitile
