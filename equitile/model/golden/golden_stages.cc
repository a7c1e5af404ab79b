#include "equitile/model/golden/golden_stages.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "equitile/base/error.h"
#include "equitile/kernel/rows/rope.h"
#include "equitile/model/sampling/denoise.h"

namespace equitile {
namespace {

constexpr int32_t kStageTag = Communicator::kMaxTag - 1;

bool IsPerToken(std::string_view name) {
  return name.starts_with("block") || name.starts_with("head") || name == "patch_embedding";
}

bool IsByHead(std::string_view name) {
  return name.ends_with(".q") || name.ends_with(".k") || name.ends_with(".v");
}

}  // namespace

std::vector<int64_t> GoldenRows(const TensorFiles& file, int64_t tokens) {
  std::vector<int64_t> rows;
  if (const StoredTensor* stored = file.Find("rows")) {
    rows = stored->Integers();
    for (const int64_t row : rows) {
      if (row >= 0 && row < tokens) continue;
      throw InputError("[model] {}: 'rows' holds {}; the latent has {} tokens", file.name(), row,
                       tokens);
    }
    return rows;
  }
  for (int64_t row = 0; row < tokens; ++row) rows.push_back(row);
  return rows;
}

std::vector<std::string> GoldenCases(const TensorFiles& file) {
  constexpr std::string_view kMark = ".timestep";
  std::vector<std::string> cases;
  for (const StoredTensor& tensor : file.tensors()) {
    if (!tensor.name.ends_with(kMark)) continue;
    cases.push_back(tensor.name.substr(0, tensor.name.size() - kMark.size()));
  }
  return cases;
}

std::vector<float> GatherHomeRows(Communicator& comm, std::vector<float> rows, int64_t tokens,
                                  int64_t width) {
  if (comm.rank() != 0) {
    CommRequest sent = comm.Send(std::as_bytes(std::span(rows)), 0, kStageTag);
    comm.Wait(sent);
    return rows;
  }
  for (int32_t rank = 1; rank < comm.size(); ++rank) {
    const Range home = HomeTokens(1, 1, tokens, rank, comm.size()).front();
    std::vector<float> part(static_cast<size_t>(home.size() * width));
    CommRequest request = comm.Receive(std::as_writable_bytes(std::span(part)), rank, kStageTag);
    comm.Wait(request);
    rows.insert(rows.end(), part.begin(), part.end());
  }
  return rows;
}

void WanStages::operator()(std::string_view name, const float* data, int64_t rows, int64_t width) {
  values_[std::string(name)].assign(data, data + rows * width);
}

void WanStages::Put(const std::string& name, std::span<const float> values) {
  values_[name].assign(values.begin(), values.end());
}

void WanStages::PutRotations(const TokenGrid& grid, const std::vector<int64_t>& rows) {
  const RopeTable rope(grid, config_.head_dim);
  const auto half = static_cast<size_t>(config_.head_dim / 2);
  std::vector<float>&cos = values_["rope_cos"], &sin = values_["rope_sin"];
  cos.resize(rows.size() * half);
  sin.resize(rows.size() * half);
  for (size_t r = 0; r < rows.size(); ++r) {
    rope.Angles(rows[r], std::span(cos).subspan(r * half, half),
                std::span(sin).subspan(r * half, half));
  }
}

void WanStages::Gather(Communicator& comm, std::span<const std::string> names, int64_t tokens) {
  for (const std::string& name : names) {
    const auto found = values_.find(name);  // on all ranks or on none, also where no token is
    if (found == values_.end() || !IsPerToken(name)) continue;
    found->second = GatherHomeRows(comm, std::move(found->second), tokens, config_.Width());
  }
}

std::vector<float> WanStages::InFileLayout(const std::string& name,
                                           const std::vector<int64_t>& rows) const {
  const auto found = values_.find(name);
  if (found == values_.end()) return {};
  const std::vector<float>& data = found->second;
  if (!IsPerToken(name)) return data;
  const auto d = static_cast<size_t>(config_.Width()), dim = static_cast<size_t>(config_.head_dim);
  std::vector<float> out(rows.size() * d);
  for (size_t r = 0; r < rows.size(); ++r) {
    for (size_t i = 0; i < d; ++i) {
      const size_t to = IsByHead(name) ? (i / dim * rows.size() + r) * dim + i % dim : r * d + i;
      out[to] = data[static_cast<size_t>(rows[r]) * d + i];
    }
  }
  return out;
}

VaeStages::VaeStages(VaeDecoder& decoder, const ConstView& latents, bool with_stages) {
  const auto sink = [&](int64_t, std::span<const float> rgb) {
    frames_.insert(frames_.end(), rgb.begin(), rgb.end());
  };
  const auto tap = [&](const VaeStage& stage) {
    Stage& to = chunks_.back()[std::string(stage.name)];
    to.channels = stage.channels;
    for (const float* row : stage.rows) {
      for (int64_t x = 0; x < stage.width; ++x) {
        const float* p = row + x * stage.pixel;
        to.pixels.insert(to.pixels.end(), p, p + to.channels);
      }
    }
  };
  for (int64_t f = 0; f < latents.Extent(1); ++f) {
    chunks_.emplace_back();
    decoder.Push(latents.Select(1, f), sink, with_stages ? VaeTap(tap) : VaeTap());
  }
}

std::vector<float> VaeStages::InFileLayout(const std::string& name) const {
  if (name == "frames") return ChannelsFirst(frames_, 3);
  std::string stage = name;
  size_t first = 0, count = chunks_.size();
  if (name.starts_with("chunk") && name.find('.') != name.npos) {
    stage = name.substr(name.find('.') + 1);
    first = static_cast<size_t>(std::strtoull(name.c_str() + 5, nullptr, 10));
    // This one is stored for the whole clip, under the first chunk.
    if (stage != "post_quant_conv") count = 1;
  }
  std::vector<float> pixels;
  int64_t channels = 0;
  for (size_t i = first; i < std::min(first + count, chunks_.size()); ++i) {
    const auto found = chunks_[i].find(stage);
    if (found == chunks_[i].end()) return {};
    channels = found->second.channels;
    pixels.insert(pixels.end(), found->second.pixels.begin(), found->second.pixels.end());
  }
  return ChannelsFirst(pixels, channels);
}

std::vector<float> ChannelsFirst(std::span<const float> pixels, int64_t channels) {
  const auto c_count = static_cast<size_t>(std::max<int64_t>(channels, 1));
  std::vector<float> out(pixels.size());
  const size_t count = pixels.size() / c_count;
  for (size_t p = 0; p < count; ++p) {
    for (size_t c = 0; c < c_count; ++c) out[c * count + p] = pixels[p * c_count + c];
  }
  return out;
}

}  // namespace equitile
