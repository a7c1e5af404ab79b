// The `equitile` command.
#include <cstdio>

int main() {
  std::puts("equitile " EQUITILE_VERSION);
  return 0;
}
