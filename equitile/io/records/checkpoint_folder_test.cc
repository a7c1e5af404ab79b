#include "equitile/io/records/checkpoint_folder.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <string_view>

#include "equitile/base/error.h"
#include "equitile/io/json_value.h"
#include "tests/in_repository.h"
#include "tests/refusal.h"
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
  const auto refusal = [&](const char* key, const Json& value) {
    return Refusal([&] { open(key, value); });
  };
  const Json second = Json({"diffusers", "WanTransformer3DModel"});
  EXPECT_NE(refusal("transformer_2", second).find("two transformers"), std::string::npos);
  EXPECT_NE(refusal("boundary_ratio", 0.9).find("two transformers"), std::string::npos);
  EXPECT_NE(refusal("expand_timesteps", true).find("Wan2.2 5B"), std::string::npos);
  EXPECT_NO_THROW(open("boundary_ratio", nullptr));
}

TEST(CheckpointFolder, SaysWhatToDoInstead) {
  const TempFolder temp;
  const auto refusal = [](const std::filesystem::path& path) {
    return Refusal([&] { CheckpointFolder folder(path); });
  };
  const auto expect = [&](const std::filesystem::path& path, std::string_view advice) {
    EXPECT_NE(refusal(path).find(advice), std::string::npos) << path << "\n" << refusal(path);
  };
  expect("Wan-AI/Wan2.1-T2V-1.3B-Diffusers", "--local-dir Wan2.1-T2V-1.3B-Diffusers");
  for (const char* before : {"", "https://huggingface.co/", "huggingface.co/", "hf.co/"}) {
    const std::string name = std::string(before) + "Wan-AI/Wan2.1-T2V-1.3B";
    expect(name,
           "hf download Wan-AI/Wan2.1-T2V-1.3B-Diffusers --local-dir Wan2.1-T2V-1.3B-Diffusers");
  }
  expect("https://huggingface.co/Wan-AI/Wan2.1-T2V-14B-Diffusers/tree/main",
         "hf download Wan-AI/Wan2.1-T2V-14B-Diffusers --local-dir");
  expect("Wan-AI/Wan2.2-T2V-A14B-Diffusers", "Wan2.2 is not supported; Wan-AI/Wan2.1-T2V-1.3B");
  expect("Wan-AI/Wan2.1-I2V-14B-480P-Diffusers", "starts from pictures is not supported");
  expect("city96/Wan2.1-T2V-14B-gguf", "GGUF files are not read");
  expect("./Wan-AI/none", "no such folder; a model is a folder as diffusers saves it");
  expect("/none/there", "no such folder; a model is");
  expect(temp / "none.gguf", "GGUF files are not read");
  expect(temp.Write("wan.gguf", "GGUF"), "GGUF files are not read");
  expect(temp.Write("wan.safetensors", "x"), "is a single file");
  expect(temp / "", "has no model_index.json; a model is");
  temp.Write("Wan2.1_VAE.pth", "x");
  expect(temp / "", "ends in -Diffusers");
}

}  // namespace
}  // namespace equitile
