// A checkpoint in the folder layout of diffusers: which parts it has, and that they are the ones of
// Wan text-to-video. Reads model_index.json only; parts are opened by whoever uses them.
#pragma once

#include <filesystem>
#include <string>

namespace equitile {

// Whether a path that is not there is the name or address of a repository on the Hugging Face hub.
bool IsHubName(const std::filesystem::path& path);

class CheckpointFolder {
 public:
  // Throws InputError for what is not a WanPipeline for text-to-video with one transformer.
  explicit CheckpointFolder(const std::filesystem::path& root);

  const std::filesystem::path& root() const { return root_; }
  // A part's folder or a file in it; throws InputError where it does not exist.
  std::filesystem::path Part(const std::string& name) const;
  std::filesystem::path Config(const std::string& part) const {
    return Part(part + "/config.json");
  }

 private:
  std::filesystem::path root_;
};

}  // namespace equitile
