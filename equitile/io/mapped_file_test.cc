#include "equitile/io/mapped_file.h"

#include <gtest/gtest.h>

#include <string>

#include "tests/temp_folder.h"

namespace equitile {
namespace {

// Forgotten bytes, whole pages or parts of them, read as before.
TEST(MappedFile, ForgottenBytesCanBeReadAgain) {
  const TempFolder folder;
  std::string contents(3 * 65536 + 17, '\0');
  for (size_t i = 0; i < contents.size(); ++i) contents[i] = static_cast<char>(i * 31 >> 3);
  const MappedFile file(folder.Write("file", contents));
  ASSERT_EQ(file.bytes().size(), contents.size());
  for (size_t begin : {size_t{0}, size_t{5}, size_t{65536}}) {
    for (size_t size : {size_t{0}, size_t{10}, size_t{70000}, contents.size() - begin}) {
      file.Forget(file.bytes().subspan(begin, size));
      for (size_t i = 0; i < contents.size(); i += 97) {
        ASSERT_EQ(static_cast<char>(file.bytes()[i]), contents[i]) << i;
      }
    }
  }
}

}  // namespace
}  // namespace equitile
