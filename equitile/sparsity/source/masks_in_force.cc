#include "equitile/sparsity/source/masks_in_force.h"

#include <cstring>

#include "equitile/base/error.h"
#include "equitile/pattern/token_order_list.h"

namespace equitile {
namespace {

std::string NameOf(size_t layer) { return fmt::format("masks.{}", layer); }

}  // namespace

LaneMasks MasksInForce::Use(int32_t layer) {
  Layer& at = layers_[static_cast<size_t>(layer)];
  EQ_CHECK(at.age >= 0, "layer {} has no masks", layer);
  ++at.age;
  return at.masks;
}

void MasksInForce::Set(int32_t layer, LaneMasks masks) {
  layers_[static_cast<size_t>(layer)] = {std::move(masks), 0};
}

int64_t MasksInForce::Bytes() const {
  int64_t bytes = 0;
  for (const Layer& layer : layers_) bytes += layer.age >= 0 ? layer.masks.Bytes() : 0;
  return bytes;
}

// Of each layer with masks: its age, the words of its blocks, then the orders of its lanes.
SourceState MasksInForce::State() const {
  SourceState state;
  for (size_t i = 0; i < layers_.size(); ++i) {
    if (layers_[i].age < 0) continue;
    const std::span<const uint64_t> words = layers_[i].masks.blocks().Words();
    std::vector<std::byte>& bytes = state[NameOf(i)];
    const std::string orders = TokenOrdersText(layers_[i].masks.orders());
    bytes.resize(sizeof(int64_t) + words.size_bytes() + orders.size());
    std::memcpy(bytes.data(), &layers_[i].age, sizeof(int64_t));
    std::memcpy(bytes.data() + sizeof(int64_t), words.data(), words.size_bytes());
    std::memcpy(bytes.data() + bytes.size() - orders.size(), orders.data(), orders.size());
  }
  return state;
}

void MasksInForce::Restore(const SourceState& state) {
  for (size_t i = 0; i < layers_.size(); ++i) {
    const auto found = state.find(NameOf(i));
    if (found == state.end()) continue;
    BlockMask blocks(shape_.blocks().lanes(), shape_.blocks().grid());
    const size_t words = blocks.Words().size_bytes();
    if (found->second.size() < sizeof(int64_t) + words) {
      throw InputError("[sparsity] the checkpoint's masks of layer {} are of another size", i);
    }
    std::memcpy(&layers_[i].age, found->second.data(), sizeof(int64_t));
    std::memcpy(blocks.MutableRow(0, 0).data(), found->second.data() + sizeof(int64_t), words);
    const auto* text =
        reinterpret_cast<const char*>(found->second.data()) + sizeof(int64_t) + words;
    layers_[i].masks = LaneMasks(
        {.blocks = std::move(blocks),
         .token_grid = token_grid_,
         .orders = ParseTokenOrders({text, found->second.size() - sizeof(int64_t) - words}),
         .tails = shape_.tails()});
  }
}

void GatherRows(Communicator& comm, BlockMask& mask) {
  if (comm.size() == 1 || mask.Words().empty()) return;
  comm.AllReduce(std::span(mask.MutableRow(0, 0).data(), mask.Words().size()), Reduce::kSum);
}

}  // namespace equitile
