#include "equitile/generate/vocabulary.h"

#include <gtest/gtest.h>

#include "tests/temp_folder.h"

namespace equitile {
namespace {

using Words = std::vector<std::string>;

TEST(Vocabulary, FindsWordsThatAreNotInIt) {
  const Vocabulary vocabulary("a big\nstar spins, left\n");
  EXPECT_EQ(vocabulary.Unknown(Words{"A BIG star, spins left!"}), Words());
  EXPECT_EQ(vocabulary.Unknown(Words{"a cat and a dog", "a cat; étoile 3"}),
            (Words{"cat", "and", "dog", "étoile"}));
  EXPECT_EQ(vocabulary.Unknown(Words{"", " ... 12 "}), Words());
}

TEST(Vocabulary, SaysSoInOneLine) {
  const Vocabulary vocabulary("star a");
  EXPECT_EQ(vocabulary.Remark(Words{"a star"}), "");
  EXPECT_EQ(vocabulary.Remark(Words{"a red cat"}),
            "this model was not taught 'red', 'cat'; its words are star a");
  const Vocabulary large("a b c d e f g h i j k l m n o p q r s t u v w");
  const std::string some = large.Remark(Words{"cat"});
  EXPECT_TRUE(some.ends_with(" s t and 3 more, in its vocabulary.txt")) << some;
  const std::string many = vocabulary.Remark(Words{"b c d e f g h i j k"});
  EXPECT_NE(many.find("'i' and others"), std::string::npos) << many;
}

TEST(Vocabulary, BelongsToAModel) {
  const TempFolder folder;
  EXPECT_FALSE(Vocabulary::Of(folder / "").has_value());
  folder.Write("vocabulary.txt", "star");
  EXPECT_EQ(Vocabulary::Of(folder / "")->Unknown(Words{"a star"}), Words{"a"});
}

}  // namespace
}  // namespace equitile
