#include "tests/in_repository.h"

namespace equitile {

std::string InRepository(const std::string& path) { return EQUITILE_REPOSITORY "/" + path; }

}  // namespace equitile
