#include "equitile/io/mask_file.h"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <span>
#include <string>

#include "equitile/base/error.h"
#include "equitile/io/atomic_write.h"
#include "equitile/io/mapped_file.h"
#include "equitile/io/npy.h"

namespace equitile {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kVersion = 1;
constexpr int64_t kDefaultBlock = 64;
constexpr int64_t kMaxTokens = INT32_MAX;  // token numbers are 32 bits wide (TokenAtPosition)

std::filesystem::path DescriptionPath(std::filesystem::path mask) {
  return mask.replace_extension(".json");
}

// The .json beside a mask. Every question checks the kind and range of the answer; keys that nobody
// knows are refused, because a misspelt one would silently mean its default.
class Description {
 public:
  Description(Json json, std::string name) : json_(std::move(json)), name_(std::move(name)) {
    constexpr std::string_view kKeys[] = {"version",  "batch",     "heads", "block",
                                          "q_tokens", "kv_tokens", "grid",  "text",
                                          "orders",   "layer",     "step"};
    if (!json_.is_object()) Fail("must be a JSON object");
    for (const auto& item : json_.items()) {
      if (std::find(std::begin(kKeys), std::end(kKeys), item.key()) == std::end(kKeys)) {
        Fail("unknown key '{}'; known are {}", item.key(), fmt::join(kKeys, ", "));
      }
    }
    if (Integer("version", 0, INT32_MAX).value_or(kVersion) != kVersion) {
      Fail("version {}: this program reads version {}", Integer("version", 0, INT32_MAX).value(),
           kVersion);
    }
  }

  std::optional<int64_t> Integer(const char* key, int64_t min, int64_t max) const {
    return Find(key) == nullptr ? std::nullopt
                                : std::optional(AsInteger(*Find(key), key, min, max));
  }

  std::optional<TokenGrid> Grid() const {
    const Json* extents = Find("grid");
    const Json* text = Find("text");
    if (extents == nullptr && text != nullptr) Fail("'text' without 'grid'; give both");
    if (extents == nullptr) return std::nullopt;
    if (!extents->is_array() || extents->size() != 3)
      Fail("'grid' must be [frames, height, width]");
    TokenGrid grid{.frames = AsInteger((*extents)[0], "grid", 1, kMaxTokens),
                   .height = AsInteger((*extents)[1], "grid", 1, kMaxTokens),
                   .width = AsInteger((*extents)[2], "grid", 1, kMaxTokens)};
    if (text != nullptr) {
      if (!text->is_object()) Fail("'text' must be an object with 'before' and 'after'");
      for (const auto& item : text->items()) {
        if (item.key() != "before" && item.key() != "after")
          Fail("unknown key '{}' in 'text'", item.key());
        (item.key() == "before" ? grid.text_before : grid.text_after) =
            AsInteger(item.value(), "text", 0, kMaxTokens);
      }
    }
    // height * width fits in 62 bits, then the rest is compared without multiplying.
    if (grid.height * grid.width > kMaxTokens / grid.frames || grid.Tokens() > kMaxTokens) {
      Fail("'grid' has more than {} tokens", kMaxTokens);
    }
    return grid;
  }

  std::vector<TokenOrder> Orders(int64_t lanes) const {
    const Json* orders = Find("orders");
    const auto lane_count = static_cast<size_t>(lanes);
    if (orders == nullptr) return std::vector<TokenOrder>(lane_count, TokenOrder::kFHW);
    if (orders->is_string()) return std::vector<TokenOrder>(lane_count, AsOrder(*orders));
    if (!orders->is_array() || orders->size() != lane_count) {
      Fail("'orders' must be one token order, or one for each of the {} lanes", lanes);
    }
    std::vector<TokenOrder> result;
    for (const Json& order : *orders) result.push_back(AsOrder(order));
    return result;
  }

  template <typename... Args>
  [[noreturn]] void Fail(fmt::format_string<Args...> format, Args&&... args) const {
    throw InputError("[io] {}: {}", name_, fmt::format(format, std::forward<Args>(args)...));
  }

 private:
  const Json* Find(const char* key) const {
    const auto found = json_.find(key);
    return found == json_.end() || found->is_null() ? nullptr : &*found;
  }

  int64_t AsInteger(const Json& value, const char* key, int64_t min, int64_t max) const {
    const bool fits = value.is_number_unsigned()
                          ? value.get<uint64_t>() <= static_cast<uint64_t>(max)
                          : value.is_number_integer();
    if (!fits || value.get<int64_t>() < min || value.get<int64_t>() > max) {
      Fail("'{}' holds {}; must be a whole number from {} to {}", key, Shortened(value), min, max);
    }
    return value.get<int64_t>();
  }

  TokenOrder AsOrder(const Json& value) const {
    if (!value.is_string())
      Fail("'orders' holds {}; must be names such as \"fhw\"", Shortened(value));
    try {
      return ParseTokenOrder(value.get<std::string>());
    } catch (const InputError& error) {
      Fail("{}", error.what());
    }
  }

  static std::string Shortened(const Json& value) {
    const std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
    return text.size() <= 40 ? text : text.substr(0, 37) + "...";
  }

  Json json_;
  std::string name_;
};

Description ReadDescription(const std::filesystem::path& mask_path) {
  const std::filesystem::path path = DescriptionPath(mask_path);
  std::error_code unknown;  // set where it cannot be told: then reading it says why
  if (path == mask_path || (!std::filesystem::exists(path, unknown) && !unknown)) {
    return Description(Json::object(), path.string());
  }
  const MappedFile file(path);
  const auto* text = reinterpret_cast<const char*>(file.bytes().data());
  try {
    return Description(Json::parse(text, text + file.bytes().size()), path.string());
  } catch (const Json::parse_error& error) {
    throw InputError("[io] {}: not JSON: {}", path.string(), error.what());
  }
}

Lanes LanesOf(const Description& description, int64_t lane_count) {
  std::optional<int64_t> batch = description.Integer("batch", 1, INT32_MAX);
  std::optional<int64_t> heads = description.Integer("heads", 1, INT32_MAX);
  if (!batch) batch = heads ? std::max<int64_t>(1, lane_count / *heads) : 1;
  if (!heads) heads = std::max<int64_t>(1, lane_count / *batch);
  const Lanes lanes{.batch = *batch, .heads = *heads};
  if (lanes.Count() != lane_count) {
    description.Fail("batch {} x heads {} is not the array's {} lanes", lanes.batch, lanes.heads,
                     lane_count);
  }
  return lanes;
}

BlockGrid BlocksOf(const Description& description, const std::optional<TokenGrid>& tokens,
                   int64_t q_blocks, int64_t kv_blocks) {
  const int64_t block =
      description.Integer("block", kMinBlockTokens, kMaxBlockTokens).value_or(kDefaultBlock);
  const auto count = [&](const char* key, int64_t blocks) {
    const std::optional<int64_t> given = description.Integer(key, 1, kMaxTokens);
    return given ? *given : tokens ? tokens->Tokens() : blocks * block;
  };
  const BlockGrid grid{.q_tokens = count("q_tokens", q_blocks),
                       .kv_tokens = count("kv_tokens", kv_blocks),
                       .block_tokens = block};
  try {
    CheckBlockGrid(grid);
  } catch (const InputError& error) {
    description.Fail("{}", error.what());
  }
  if (grid.QBlocks() != q_blocks || grid.KvBlocks() != kv_blocks) {
    description.Fail("{} x {} tokens in blocks of {} are {} x {} blocks, not the array's {} x {}",
                     grid.q_tokens, grid.kv_tokens, block, grid.QBlocks(), grid.KvBlocks(),
                     q_blocks, kv_blocks);
  }
  if (std::max(grid.q_tokens, grid.kv_tokens) > kMaxTokens)
    description.Fail("more than {} tokens", kMaxTokens);
  return grid;
}

// A token order lines up queries and keys alike, so both must be the grid's tokens. Without orders
// only the queries have to be: the keys of cross-attention are text.
void CheckOrders(const Description& description, const MaskFile& mask, const BlockGrid& blocks) {
  const bool natural = std::all_of(mask.orders.begin(), mask.orders.end(),
                                   [](TokenOrder order) { return order == TokenOrder::kFHW; });
  if (!natural && !mask.grid) description.Fail("token orders other than fhw need 'grid'");
  if (!mask.grid) return;
  const int64_t tokens = mask.grid->Tokens();
  if (blocks.q_tokens != tokens || (!natural && blocks.kv_tokens != tokens)) {
    description.Fail("'grid' and 'text' make {} tokens, but the mask is for {} x {}", tokens,
                     blocks.q_tokens, blocks.kv_tokens);
  }
}

// 64 elements of 0 or 1 into the bits of a word, first element lowest; nothing if one is neither.
std::optional<uint64_t> PackWord(std::span<const std::byte> elements) {
  constexpr uint64_t kOnes = 0x0101010101010101;
  // Moves the low bit of byte i to bit 56 + i: no two products meet in one bit.
  constexpr uint64_t kGather = 0x0102040810204080;
  uint64_t word = 0;
  for (size_t i = 0; i < elements.size(); i += 8) {
    uint64_t eight = 0;
    std::memcpy(&eight, elements.data() + i, std::min<size_t>(8, elements.size() - i));
    if ((eight & ~kOnes) != 0) return std::nullopt;
    word |= (eight * kGather >> 56) << i;
  }
  return word;
}

// `elements`: [lanes, q_blocks, kv_blocks]
BlockMask Pack(const Lanes& lanes, const BlockGrid& grid, std::span<const std::byte> elements,
               const std::string& name) {
  BlockMask mask(lanes, grid);
  const auto row_bytes = static_cast<size_t>(mask.KvBlocks());
  for (int64_t lane = 0; lane < mask.LaneCount(); ++lane) {
    for (int64_t q = 0; q < mask.QBlocks(); ++q) {
      const auto row =
          elements.subspan(static_cast<size_t>(lane * mask.QBlocks() + q) * row_bytes, row_bytes);
      const std::span<uint64_t> words = mask.MutableRow(lane, q);
      for (size_t w = 0; w < words.size(); ++w) {
        const auto word = PackWord(row.subspan(w * 64, std::min<size_t>(64, row_bytes - w * 64)));
        if (!word)
          throw InputError("[io] {}: lane {}, q block {}: a mask holds only 0 and 1", name, lane,
                           q);
        words[w] = *word;
      }
    }
  }
  return mask;
}

void CheckArray(const NpyHeader& header, const std::string& name) {
  if (header.type == NpyType::kFloat32) {
    throw InputError("[io] {}: float32; a mask is bool or uint8", name);
  }
  const size_t rank = header.shape.size();
  if (rank != 3 && rank != 4) {
    throw InputError(
        "[io] {}: shape ({}) has rank {}; a mask is [lanes, q, kv] or [layers, lanes, q, kv]", name,
        fmt::join(header.shape, ", "), rank);
  }
  if (header.Count() == 0)
    throw InputError("[io] {}: shape ({}) is empty", name, fmt::join(header.shape, ", "));
}

std::vector<std::byte> Unpack(const std::vector<BlockMask>& layers) {
  std::vector<std::byte> elements;
  for (const BlockMask& mask : layers) {
    for (int64_t lane = 0; lane < mask.LaneCount(); ++lane) {
      for (int64_t q = 0; q < mask.QBlocks(); ++q) {
        const size_t row = elements.size();
        elements.resize(row + static_cast<size_t>(mask.KvBlocks()), std::byte{0});
        mask.ForEachKept(
            lane, q, [&](int64_t kv) { elements[row + static_cast<size_t>(kv)] = std::byte{1}; });
      }
    }
  }
  return elements;
}

Json Describe(const MaskFile& mask) {
  const BlockMask& first = mask.layers.front();
  Json json = {{"version", kVersion},
               {"batch", first.lanes().batch},
               {"heads", first.lanes().heads},
               {"block", first.grid().block_tokens},
               {"q_tokens", first.grid().q_tokens},
               {"kv_tokens", first.grid().kv_tokens}};
  if (mask.grid) {
    json["grid"] = {mask.grid->frames, mask.grid->height, mask.grid->width};
    json["text"] = {{"before", mask.grid->text_before}, {"after", mask.grid->text_after}};
  }
  const bool same = std::all_of(mask.orders.begin(), mask.orders.end(),
                                [&](TokenOrder order) { return order == mask.orders.front(); });
  if (same) {
    json["orders"] = TokenOrderName(mask.orders.front());
  } else {
    for (TokenOrder order : mask.orders) json["orders"].push_back(TokenOrderName(order));
  }
  if (mask.layer) json["layer"] = *mask.layer;
  if (mask.step) json["step"] = *mask.step;
  return json;
}

}  // namespace

MaskFile ReadMaskFile(const std::filesystem::path& path) {
  const std::string name = path.string();
  const MappedFile file(path);
  const NpyHeader header = ParseNpyHeader(file.bytes(), name);
  CheckArray(header, name);
  MaskFile mask;
  mask.has_layer_axis = header.shape.size() == 4;
  const int64_t layers = mask.has_layer_axis ? header.shape[0] : 1;
  const auto inner = std::span(header.shape).last(3);  // lanes, q_blocks, kv_blocks

  const Description description = ReadDescription(path);
  const Lanes lanes = LanesOf(description, inner[0]);
  mask.grid = description.Grid();
  mask.orders = description.Orders(inner[0]);
  mask.layer = description.Integer("layer", 0, INT32_MAX);
  mask.step = description.Integer("step", 0, INT32_MAX);
  const BlockGrid blocks = BlocksOf(description, mask.grid, inner[1], inner[2]);
  CheckOrders(description, mask, blocks);

  const auto layer_bytes = static_cast<size_t>(inner[0] * inner[1] * inner[2]);
  for (int64_t layer = 0; layer < layers; ++layer) {
    const size_t offset = header.data_offset + static_cast<size_t>(layer) * layer_bytes;
    mask.layers.push_back(Pack(lanes, blocks, file.bytes().subspan(offset, layer_bytes), name));
  }
  return mask;
}

void WriteMaskFile(const std::filesystem::path& path, const MaskFile& mask) {
  EQ_CHECK(!mask.layers.empty() && (mask.has_layer_axis || mask.layers.size() == 1));
  const BlockMask& first = mask.layers.front();
  EQ_CHECK(static_cast<int64_t>(mask.orders.size()) == first.LaneCount());
  for (const BlockMask& layer : mask.layers) {
    EQ_CHECK(layer.lanes() == first.lanes() && layer.grid() == first.grid());
  }
  if (DescriptionPath(path) == path) {
    throw InputError("[io] {}: a mask is called .npy; .json is its description", path.string());
  }
  std::vector<int64_t> shape = {first.LaneCount(), first.QBlocks(), first.KvBlocks()};
  if (mask.has_layer_axis) shape.insert(shape.begin(), static_cast<int64_t>(mask.layers.size()));
  const std::string text = Describe(mask).dump(2) + "\n";
  WriteFileAtomically(DescriptionPath(path), {std::as_bytes(std::span(text))});
  WriteNpy(path, NpyType::kBool, shape, Unpack(mask.layers));
}

MaskFile WithBatch(const MaskFile& mask, int64_t batch) {
  const Lanes have = mask.lanes();
  if (have.batch == batch) return mask;
  if (have.batch != 1)
    throw InputError("[io] a mask of batch {} cannot serve batch {}", have.batch, batch);
  MaskFile result = mask;
  const Lanes lanes{.batch = batch, .heads = have.heads};
  for (size_t i = 0; i < mask.layers.size(); ++i) {
    const BlockMask& from = mask.layers[i];
    result.layers[i] = BlockMask(lanes, from.grid());
    for (int64_t lane = 0; lane < lanes.Count(); ++lane) {
      for (int64_t q = 0; q < from.QBlocks(); ++q) {
        const auto row = from.Row(lanes.HeadOf(lane), q);
        std::copy(row.begin(), row.end(), result.layers[i].MutableRow(lane, q).begin());
      }
    }
  }
  result.orders.clear();
  for (int64_t lane = 0; lane < lanes.Count(); ++lane) {
    result.orders.push_back(mask.orders[static_cast<size_t>(lanes.HeadOf(lane))]);
  }
  return result;
}

}  // namespace equitile
