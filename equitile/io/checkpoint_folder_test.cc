#include "equitile/io/checkpoint_folder.h"

#include <gtest/gtest.h>

#include "equitile/base/error.h"
#include "equitile/io/json_value.h"
#include "tests/in_repository.h"
#include "tests/temp_folder.h"

namespace equitile {
namespace {

const std::string kMini = InRepository("models/wan-mini");

TEST(CheckpointFolder, TakesWan) {
  const CheckpointFolder folder(kMini);
  EXPECT_TRUE(std::filesystem::exists(folder.Config("transformer")));
  EXPECT_NO_THROW(CheckpointFolder(InRepository("tests/golden/tiny-wan")));
  EXPECT_THROW(folder.Part("transformer_2"), InputError);
}

TEST(CheckpointFolder, RefusesOtherPipelines) {
  const TempFolder temp;
  EXPECT_THROW(CheckpointFolder(temp / "none"), InputError);
  EXPECT_THROW(CheckpointFolder(temp / "."), InputError);
  const Json good = ParseJson(ReadTextFile(kMini + "/model_index.json"), "x");
  const auto open = [&](const char* key, const Json& value) {
    Json changed = good;
    changed[key] = value;
    temp.Write("model_index.json", changed.dump());
    CheckpointFolder folder(temp / ".");
  };
  EXPECT_NO_THROW(open("more", 3));
  EXPECT_NO_THROW(open("transformer_2", nullptr));
  EXPECT_THROW(open("_class_name", "WanImageToVideoPipeline"), InputError);
  EXPECT_THROW(open("_class_name", nullptr), InputError);
  EXPECT_THROW(open("transformer", Json({"diffusers", "CogVideoXTransformer3DModel"})), InputError);
  EXPECT_THROW(open("vae", Json({"diffusers", "AutoencoderKL"})), InputError);
  EXPECT_THROW(open("tokenizer", 3), InputError);
  EXPECT_THROW(open("transformer_2", Json({"diffusers", "WanTransformer3DModel"})), InputError);
  EXPECT_THROW(open("boundary_ratio", 0.9), InputError);
  EXPECT_THROW(open("expand_timesteps", true), InputError);
}

}  // namespace
}  // namespace equitile
