#include "equitile/io/records/mask_file.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <span>
#include <string>

#include "equitile/base/error.h"
#include "equitile/io/arrays/npy.h"
#include "equitile/io/json_value.h"
#include "equitile/io/mapped_file.h"
#include "equitile/io/records/token_json.h"

namespace equitile {
namespace {

constexpr int64_t kVersion = 1;
constexpr int64_t kDefaultBlock = 64;

std::filesystem::path DescriptionPath(std::filesystem::path mask) {
  return mask.replace_extension(".json");
}

constexpr std::string_view kMaskTypes =
    "a mask is bool, or uint8 or (little-endian) int64 of 0 and 1";

[[noreturn]] void NotCalledNpy(const std::filesystem::path& path) {
  throw InputError("[io] {}: a mask is called .npy; .json is its description", path.string());
}

// The .json beside the mask; an empty object where there is none.
Json ReadDescription(const std::filesystem::path& path) {
  std::error_code unknown;  // set where it cannot be told: then reading it says why
  if (!std::filesystem::exists(path, unknown) && !unknown) return Json::object();
  return ParseJson(ReadTextFile(path), path.string());
}

std::optional<int64_t> OptionalInteger(const JsonValue& description, const char* key, int64_t min,
                                       int64_t max) {
  const std::optional<JsonValue> value = description.Find(key);
  return value ? std::optional(value->Integer(min, max)) : std::nullopt;
}

void CheckKeysAndVersion(const JsonValue& description) {
  description.CheckKeys({"version", "batch", "heads", "block", "q_tokens", "kv_tokens", "grid",
                         "text", "home_order", "orders", "tails", "layer", "step", "method"});
  const auto version = description.Find("version");
  if (version && version->Integer(0, INT32_MAX) != kVersion) {
    version->Fail("this program reads version {}", kVersion);
  }
}

std::optional<TokenGrid> GridOf(const JsonValue& description) {
  const auto extents = description.Find("grid");
  const auto text = description.Find("text"), home = description.Find("home_order");
  const TokenOrder home_order = home ? TokenOrderFrom(*home) : TokenOrder::kFHW;
  if (!extents && text) text->Fail("needs 'grid' too");
  if (!extents && home_order != TokenOrder::kFHW) home->Fail("needs 'grid' too");
  if (!extents) return std::nullopt;
  TokenGrid grid = TokenGridFrom(*extents, text);
  grid.home = home_order;
  return grid;
}

std::vector<TokenOrder> OrdersOf(const JsonValue& description, TokenOrder home, int64_t lanes) {
  const auto orders = description.Find("orders");
  if (!orders || orders->IsText()) {
    const TokenOrder order = orders ? TokenOrderFrom(*orders) : home;
    return std::vector<TokenOrder>(static_cast<size_t>(lanes), order);
  }
  std::vector<TokenOrder> result;
  orders->Size(lanes);
  for (int64_t lane = 0; lane < lanes; ++lane) result.push_back(TokenOrderFrom(orders->At(lane)));
  return result;
}

Tail TailOf(const JsonValue& name) {
  const std::string text = name.Text();
  if (text != "none" && text != "mean") name.Fail("must be none or mean");
  return text == "mean" ? Tail::kMean : Tail::kNone;
}

std::vector<Tail> TailsOf(const JsonValue& description, int64_t lanes) {
  const auto tails = description.Find("tails");
  if (!tails) return {};
  if (tails->IsText()) return std::vector<Tail>(static_cast<size_t>(lanes), TailOf(*tails));
  std::vector<Tail> result;
  tails->Size(lanes);
  for (int64_t lane = 0; lane < lanes; ++lane) result.push_back(TailOf(tails->At(lane)));
  return result;
}

const char* TailName(Tail tail) { return tail == Tail::kMean ? "mean" : "none"; }

Lanes LanesOf(const JsonValue& description, int64_t lane_count) {
  std::optional<int64_t> batch = OptionalInteger(description, "batch", 1, INT32_MAX);
  std::optional<int64_t> heads = OptionalInteger(description, "heads", 1, INT32_MAX);
  if (!batch) batch = heads ? std::max<int64_t>(1, lane_count / *heads) : 1;
  if (!heads) heads = std::max<int64_t>(1, lane_count / *batch);
  const Lanes lanes{.batch = *batch, .heads = *heads};
  if (lanes.Count() != lane_count) {
    description.Fail("batch {} x heads {} is not the array's {} lanes", lanes.batch, lanes.heads,
                     lane_count);
  }
  return lanes;
}

BlockGrid BlocksOf(const JsonValue& description, const std::optional<TokenGrid>& tokens,
                   int64_t q_blocks, int64_t kv_blocks) {
  const int64_t block = OptionalInteger(description, "block", kMinBlockTokens, kMaxBlockTokens)
                            .value_or(kDefaultBlock);
  const auto count = [&](const char* key, int64_t blocks) {
    const std::optional<int64_t> given = OptionalInteger(description, key, 1, kMaxFileTokens);
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
  if (std::max(grid.q_tokens, grid.kv_tokens) > kMaxFileTokens) {
    description.Fail("more than {} tokens", kMaxFileTokens);
  }
  return grid;
}

// A token order lines up queries and keys alike, so both must be the grid's tokens. Without orders
// only the queries have to be: the keys of cross-attention are text.
void CheckOrders(const JsonValue& description, const MaskFile& mask, const BlockGrid& blocks) {
  const bool natural = std::all_of(mask.orders.begin(), mask.orders.end(),
                                   [&](TokenOrder order) { return order == mask.home(); });
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

// One byte for each int64; what is neither 0 nor 1 becomes neither.
std::vector<std::byte> Narrow(std::span<const std::byte> elements) {
  std::vector<std::byte> bytes(elements.size() / sizeof(int64_t));
  for (size_t i = 0; i < bytes.size(); ++i) {
    int64_t value = 0;
    std::memcpy(&value, elements.data() + i * sizeof(value), sizeof(value));
    bytes[i] = value == 0 || value == 1 ? static_cast<std::byte>(value) : std::byte{2};
  }
  return bytes;
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
          throw InputError("[io] {}: lane {}, q block {}: holds what is neither 0 nor 1; {}", name,
                           lane, q, kMaskTypes);
        words[w] = *word;
      }
    }
  }
  return mask;
}

void CheckArray(const NpyHeader& header, const std::string& name) {
  if (header.type == NpyType::kFloat16 || header.type == NpyType::kFloat32) {
    throw InputError("[io] {}: {}; {}", name, NpyTypeName(header.type), kMaskTypes);
  }
  const size_t rank = header.shape.size();
  if (rank < 3 || rank > 5) {
    throw InputError(
        "[io] {}: shape ({}) has rank {}; a mask is [lanes, q, kv], [layers, lanes, q, kv] or "
        "[steps, layers, lanes, q, kv]",
        name, fmt::join(header.shape, ", "), rank);
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
    json["grid"] = ExtentsJson(*mask.grid);
    json["text"] = TextJson(*mask.grid);
  }
  if (mask.home() != TokenOrder::kFHW) json["home_order"] = TokenOrderName(mask.home());
  const bool same = std::all_of(mask.orders.begin(), mask.orders.end(),
                                [&](TokenOrder order) { return order == mask.orders.front(); });
  if (same) {
    json["orders"] = TokenOrderName(mask.orders.front());
  } else {
    for (TokenOrder order : mask.orders) json["orders"].push_back(TokenOrderName(order));
  }
  if (std::count(mask.tails.begin(), mask.tails.end(), Tail::kMean) > 0) {
    for (Tail tail : mask.tails) json["tails"].push_back(TailName(tail));
  }
  if (mask.layer) json["layer"] = *mask.layer;
  if (mask.step) json["step"] = *mask.step;
  if (!mask.method.empty()) json["method"] = mask.method;
  return json;
}

}  // namespace

bool IsArchiveOfMasks(const std::filesystem::path& path) {
  const std::string extension = path.extension().string();
  return extension == ".npz" || extension == ".pt" || extension == ".pth";
}

MaskFile ReadMaskFile(const std::filesystem::path& path) {
  const std::string name = path.string();
  if (DescriptionPath(path) == path) NotCalledNpy(path);
  if (IsArchiveOfMasks(path)) {
    throw InputError(
        "[io] {}: the command reads masks from .npy (numpy.save); equitile.plan and "
        "equitile.attention in Python take .npz and .pt as well; {}",
        name, kMaskTypes);
  }
  const MappedFile file(path);
  const NpyHeader header = ParseNpyHeader(file.bytes(), name, kMaskTypes);
  CheckArray(header, name);
  MaskFile mask;
  mask.has_layer_axis = header.shape.size() >= 4;
  if (header.shape.size() == 5) mask.steps = header.shape[0];
  int64_t layers = 1;  // of all steps
  for (size_t axis = 0; axis + 3 < header.shape.size(); ++axis) layers *= header.shape[axis];
  const auto inner = std::span(header.shape).last(3);  // lanes, q_blocks, kv_blocks

  const std::string description_name = DescriptionPath(path).string();
  const Json json = ReadDescription(description_name);
  const JsonValue description(json, description_name);
  CheckKeysAndVersion(description);
  const Lanes lanes = LanesOf(description, inner[0]);
  mask.grid = GridOf(description);
  mask.orders = OrdersOf(description, mask.home(), inner[0]);
  mask.tails = TailsOf(description, inner[0]);
  mask.layer = OptionalInteger(description, "layer", 0, INT32_MAX);
  mask.step = OptionalInteger(description, "step", 0, INT32_MAX);
  if (const auto method = description.Find("method")) mask.method = method->Text();
  const BlockGrid blocks = BlocksOf(description, mask.grid, inner[1], inner[2]);
  CheckOrders(description, mask, blocks);

  const auto layer_bytes =
      static_cast<size_t>(inner[0] * inner[1] * inner[2] * NpyTypeBytes(header.type));
  for (int64_t layer = 0; layer < layers; ++layer) {
    const size_t offset = header.data_offset + static_cast<size_t>(layer) * layer_bytes;
    const auto elements = file.bytes().subspan(offset, layer_bytes);
    const bool is_wide = header.type == NpyType::kInt64;
    mask.layers.push_back(is_wide ? Pack(lanes, blocks, Narrow(elements), name)
                                  : Pack(lanes, blocks, elements, name));
  }
  return mask;
}

void WriteMaskFile(const std::filesystem::path& path, const MaskFile& mask) {
  EQ_CHECK(!mask.layers.empty() && (mask.has_layer_axis || mask.layers.size() == 1));
  EQ_CHECK(mask.has_layer_axis || mask.steps == 0);
  const BlockMask& first = mask.layers.front();
  EQ_CHECK(static_cast<int64_t>(mask.orders.size()) == first.LaneCount());
  for (const BlockMask& layer : mask.layers) {
    EQ_CHECK(layer.lanes() == first.lanes() && layer.grid() == first.grid());
  }
  if (DescriptionPath(path) == path) NotCalledNpy(path);
  std::vector<int64_t> shape = {first.LaneCount(), first.QBlocks(), first.KvBlocks()};
  const int64_t steps = std::max<int64_t>(mask.steps, 1);
  EQ_CHECK(std::ssize(mask.layers) % steps == 0);
  if (mask.has_layer_axis) shape.insert(shape.begin(), std::ssize(mask.layers) / steps);
  if (mask.steps > 0) shape.insert(shape.begin(), steps);
  WriteTextFile(DescriptionPath(path), JsonText(Describe(mask), 2) + "\n");
  WriteNpy(path, NpyType::kBool, shape, Unpack(mask.layers));
}

void WriteMassFile(const std::filesystem::path& path, const MaskFile& mask,
                   std::span<const float> masses) {
  EQ_CHECK(mask.layers.size() == 1 && !mask.has_layer_axis);
  const BlockMask& blocks = mask.layers.front();
  if (DescriptionPath(path) == path) NotCalledNpy(path);
  WriteTextFile(DescriptionPath(path), JsonText(Describe(mask), 2) + "\n");
  WriteNpy(path, NpyType::kFloat32,
           std::array{blocks.LaneCount(), blocks.QBlocks(), blocks.KvBlocks()},
           std::as_bytes(masses));
}

MaskFile MaskFileOf(const LaneMasks& masks, const TokenGrid& grid, int64_t step, int64_t layer) {
  MaskFile file;
  file.layers.push_back(masks.blocks());
  file.orders = masks.orders();
  if (file.orders.empty()) file.orders.assign(static_cast<size_t>(file.lanes().Count()), grid.home);
  file.tails = masks.tails();
  file.grid = grid;
  file.layer = layer;
  file.step = step;
  return file;
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
  result.tails.clear();
  for (int64_t lane = 0; lane < lanes.Count(); ++lane) {
    const auto head = static_cast<size_t>(lanes.HeadOf(lane));
    result.orders.push_back(mask.orders[head]);
    if (!mask.tails.empty()) result.tails.push_back(mask.tails[head]);
  }
  return result;
}

LaneMasks MaskFile::MasksOf(size_t index) const {
  return LaneMasks({.blocks = layers[index],
                    .token_grid = grid.value_or(TokenGrid{}),
                    .orders = orders,
                    .tails = tails});
}

}  // namespace equitile
