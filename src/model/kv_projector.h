// KvProjector: keys and values of a layer from hidden states that were kept. The same steps as in
// the forward pass, row by row, so the bits are those of the page that was let go.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "base/bytes.h"
#include "base/serial_parallel.h"
#include "headrace/result.h"
#include "model/hidden_rows.h"
#include "model/model.h"
#include "page/shape.h"

namespace headrace {

/// Thread-safe. Each call computes on its own thread, with one of a fixed number of workspaces.
class KvProjector {
 public:
  /// `model` must outlive this. At most `workspaces` calls compute at once; others wait. Errors:
  /// unsupported (the model's hidden states cannot be kept as `type`), out_of_budget.
  static Result<std::unique_ptr<KvProjector>> create(const Model& model, HiddenType type,
                                                     std::uint32_t workspaces);
  ~KvProjector();
  KvProjector(const KvProjector&) = delete;
  KvProjector& operator=(const KvProjector&) = delete;

  HiddenType type() const { return type_; }
  std::uint32_t row_bytes() const { return hidden_row_bytes(type_, model_->shape.embedding); }

  /// Writes K and V of tokens from `first_position` on, whose rows are `kept`, into a page of
  /// `shape`, from token `first_token` on.
  void project(std::uint32_t layer, std::uint32_t first_position, Bytes kept,
               const PageShape& shape, std::uint32_t first_token, std::byte* page);
  /// The same into a page of one tile that lives as long as the call of `use`.
  void project(std::uint32_t layer, std::uint32_t first_position, Bytes kept, const PageShape& tile,
               const std::function<void(Bytes page)>& use);

 private:
  struct Workspace;
  KvProjector(const Model& model, HiddenType type);
  Workspace& acquire();
  void release(Workspace& workspace);
  kernel::InputRows input(Workspace& workspace, std::uint32_t layer, Bytes kept) const;
  void project_some(Workspace& workspace, std::uint32_t layer, std::uint32_t first_position,
                    Bytes kept, const PageShape& shape, std::uint32_t first_token, std::byte* page);

  const Model* model_;
  HiddenType type_;
  SerialParallel serial_;
  std::mutex mutex_;
  std::condition_variable freed_;
  std::vector<std::unique_ptr<Workspace>> workspaces_;
  std::vector<Workspace*> free_;
};

}  // namespace headrace
