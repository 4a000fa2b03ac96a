#include "model/kv_projector.h"

#include <algorithm>
#include <string>

#include "base/aligned_buffer.h"
#include "base/check.h"
#include "model/attention.h"
#include "model/row_steps.h"

namespace headrace {
namespace {

/// Rows that are computed together: they share a pass over the weights.
constexpr std::uint32_t rows_at_once = 64;

/// Of the largest type of page, with scales to spare.
std::uint64_t tile_bytes(const ModelShape& shape) {
  const PageShape tile = {tile_tokens, shape.kv_heads, shape.head_dim, KvType::f32};
  return 2 * tile.bytes();
}

}  // namespace

struct KvProjector::Workspace {
  explicit Workspace(kernel::MatrixMultiplier own) : multiplier(std::move(own)) {}

  void carve(Carver& carver, const ModelShape& shape) {
    carver.take(hidden, std::size_t{rows_at_once} * shape.embedding);
    carver.take(key, std::size_t{rows_at_once} * shape.kv_width());
    carver.take(value, std::size_t{rows_at_once} * shape.kv_width());
    carver.take(tile, tile_bytes(shape));
    carver.take(cosine, shape.rotated_dims / 2);
    carver.take(sine, shape.rotated_dims / 2);
    carve_quantized(carver, rows_at_once, shape.embedding, quantized);
    quantized.width = shape.embedding;
  }

  kernel::MatrixMultiplier multiplier;
  AlignedBuffer memory;
  float* hidden = nullptr;  // [rows_at_once][embedding]
  float* key = nullptr;     // [rows_at_once][kv_width]
  float* value = nullptr;
  std::byte* tile = nullptr;
  float* cosine = nullptr;  // [pair]
  float* sine = nullptr;
  kernel::QuantizedRows quantized;
};

Result<std::unique_ptr<KvProjector>> KvProjector::create(const Model& model, HiddenType type,
                                                         std::uint32_t workspaces) {
  const ModelShape& shape = model.shape;
  if (!can_keep_rows(type, shape.embedding)) {
    return Error{ErrorCode::unsupported,
                 "--kv-codec hidden-q8 needs hidden states of a multiple of 32 values, and this "
                 "model's have " +
                     std::to_string(shape.embedding) + "; use hidden-f16"};
  }
  std::unique_ptr<KvProjector> projector(new KvProjector(model, type));
  for (std::uint32_t i = 0; i < workspaces; ++i) {
    HEADRACE_TRY_ASSIGN(kernel::MatrixMultiplier multiplier,
                        kernel::MatrixMultiplier::create(projector->serial_, shape.embedding));
    auto workspace = std::make_unique<Workspace>(std::move(multiplier));
    HEADRACE_TRY_ASSIGN(workspace->memory,
                        allocate_parts([&](Carver& carver) { workspace->carve(carver, shape); }));
    projector->free_.push_back(workspace.get());
    projector->workspaces_.push_back(std::move(workspace));
  }
  return projector;
}

KvProjector::KvProjector(const Model& model, HiddenType type) : model_(&model), type_(type) {}
KvProjector::~KvProjector() = default;

KvProjector::Workspace& KvProjector::acquire() {
  std::unique_lock lock(mutex_);
  freed_.wait(lock, [this] { return !free_.empty(); });
  Workspace* const workspace = free_.back();
  free_.pop_back();
  return *workspace;
}

void KvProjector::release(Workspace& workspace) {
  {
    const std::lock_guard lock(mutex_);
    free_.push_back(&workspace);
  }
  freed_.notify_one();
}

void KvProjector::project(std::uint32_t layer, std::uint32_t first_position, Bytes kept,
                          const PageShape& shape, std::uint32_t first_token, std::byte* page) {
  Workspace& workspace = acquire();
  const std::size_t bytes_at_once = std::size_t{rows_at_once} * row_bytes();
  for (std::uint32_t first = 0; !kept.empty(); first += rows_at_once) {
    const Bytes some = kept.first(std::min(bytes_at_once, kept.size()));
    project_some(workspace, layer, first_position + first, some, shape, first_token + first, page);
    kept = kept.subspan(some.size());
  }
  release(workspace);
}

void KvProjector::project(std::uint32_t layer, std::uint32_t first_position, Bytes kept,
                          const PageShape& tile, const std::function<void(Bytes page)>& use) {
  HEADRACE_CHECK(tile.bytes() <= tile_bytes(model_->shape), "a page of one tile");
  Workspace& workspace = acquire();
  project_some(workspace, layer, first_position, kept, tile, 0, workspace.tile);
  use({workspace.tile, tile.bytes()});
  release(workspace);
}

/// The rows as the matrices of the layer read them in the forward pass.
kernel::InputRows KvProjector::input(Workspace& workspace, std::uint32_t layer, Bytes kept) const {
  const std::uint32_t width = model_->shape.embedding;
  const std::uint32_t bytes = row_bytes();
  kernel::InputRows input;
  input.quantized = workspace.quantized;
  input.count = static_cast<std::uint32_t>(kept.size() / bytes);
  const bool are_quantized = type_ == HiddenType::q8 && reads_integers_only(model_->layers[layer]);
  if (!are_quantized) input.floats = workspace.hidden;
  for (std::uint32_t row = 0; row < input.count; ++row) {
    const std::byte* const from = kept.data() + std::size_t{row} * bytes;
    if (are_quantized) {
      read_quantized_row(from, workspace.quantized.from_row(row));
    } else {
      read_row(type_, from, width, workspace.hidden + std::size_t{row} * width);
    }
  }
  return input;
}

void KvProjector::project_some(Workspace& workspace, std::uint32_t layer,
                               std::uint32_t first_position, Bytes kept,
                               const PageShape& page_shape, std::uint32_t first_token,
                               std::byte* page) {
  const ModelShape& shape = model_->shape;
  const LayerWeights& weights = model_->layers[layer];
  const kernel::InputRows rows_in = input(workspace, layer, kept);
  const std::uint32_t rows = rows_in.count;
  multiply_rows(serial_, workspace.multiplier,
                {{&weights.key, {workspace.key, shape.kv_width(), false}},
                 {&weights.value, {workspace.value, shape.kv_width(), false}}},
                rows_in);
  const RopeSpec& rope = shape.window(layer) == 0 ? model_->rope : model_->window_rope;
  for (std::uint32_t row = 0; row < rows; ++row) {
    float* const key = workspace.key + std::size_t{row} * shape.kv_width();
    norm_heads(shape, weights.key_norm, shape.kv_heads, key);
    if (!shape.is_rotated(layer)) continue;
    fill_angles(rope, first_position + row, workspace.cosine, workspace.sine);
    rotate_heads(shape, shape.kv_heads, workspace.cosine, workspace.sine, key);
  }
  for (std::uint32_t row = 0; row < rows;) {
    const std::uint32_t token = first_token + row;
    const std::uint32_t in_tile = std::min(rows - row, tile_tokens - token % tile_tokens);
    for (std::uint32_t head = 0; head < shape.kv_heads; ++head) {
      const std::size_t at = std::size_t{row} * shape.kv_width() + head * shape.head_dim;
      kernel::kernels().store_kv(workspace.key + at, workspace.value + at, shape.kv_width(), token,
                                 in_tile, page_head(page_shape, page, head));
    }
    row += in_tile;
  }
}

}  // namespace headrace
