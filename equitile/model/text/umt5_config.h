// What text_encoder/config.json says about a UMT5 encoder.
#pragma once

#include <cstdint>
#include <filesystem>

namespace equitile {

// Defaults are those of transformers' UMT5Config, for keys that a file leaves out.
struct Umt5Config {
  int64_t vocab_size = 250112;
  int64_t d_model = 512;
  int64_t d_kv = 64;
  int64_t d_ff = 1024;
  int64_t layers = 8;
  int64_t heads = 6;
  int64_t buckets = 32;        // of relative positions, half of them for keys after the query
  int64_t max_distance = 128;  // from here on all distances share a bucket
  float eps = 1e-6f;

  int64_t Inner() const { return heads * d_kv; }
  int64_t Parameters() const;  // the embedding counted once
};

// Throws InputError for another model or another feed-forward than gated gelu.
Umt5Config ReadUmt5Config(const std::filesystem::path& config_json);

// The bucket of a key at `distance` = key position - query position.
int64_t RelativeBucket(const Umt5Config& config, int64_t distance);

}  // namespace equitile
