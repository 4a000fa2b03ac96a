#include "tests/support/llama_reference.h"

#include <algorithm>
#include <utility>

#include "llama.h"

namespace headrace::test {
namespace {

struct ModelDeleter {
  void operator()(llama_model* model) const { llama_model_free(model); }
};
struct ContextDeleter {
  void operator()(llama_context* context) const { llama_free(context); }
};

void drop_log_line(ggml_log_level /*level*/, const char* /*text*/, void* /*user_data*/) {}

}  // namespace

struct LlamaReference::State {
  std::unique_ptr<llama_model, ModelDeleter> model;
  std::unique_ptr<llama_context, ContextDeleter> context;
  llama_batch batch{};
  std::uint32_t batch_tokens = 0;
  std::uint32_t position = 0;

  State() = default;
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() { llama_batch_free(batch); }
};

LlamaReference::LlamaReference(std::unique_ptr<State> state) : state_(std::move(state)) {}
LlamaReference::~LlamaReference() = default;

Result<std::unique_ptr<LlamaReference>> LlamaReference::open(const std::string& path,
                                                             const LlamaReferenceOptions& options) {
  llama_log_set(drop_log_line, nullptr);
  auto state = std::make_unique<State>();
  state->batch_tokens = options.batch_tokens;

  llama_model_params model_params = llama_model_default_params();
  model_params.n_gpu_layers = 0;
  state->model.reset(llama_model_load_from_file(path.c_str(), model_params));
  if (!state->model) return Error{ErrorCode::corrupt, "llama.cpp does not load " + path};

  llama_context_params params = llama_context_default_params();
  params.n_ctx = options.context;
  params.n_batch = options.batch_tokens;
  params.n_ubatch = options.batch_tokens;
  params.n_threads = static_cast<std::int32_t>(options.threads);
  params.n_threads_batch = static_cast<std::int32_t>(options.threads);
  params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
  params.type_k = options.kv_type == KvType::f32 ? GGML_TYPE_F32 : GGML_TYPE_F16;
  params.type_v = params.type_k;
  state->context.reset(llama_init_from_model(state->model.get(), params));
  if (!state->context) return Error{ErrorCode::internal, "llama.cpp makes no context for " + path};
  state->batch = llama_batch_init(static_cast<std::int32_t>(options.batch_tokens), 0, 1);
  return std::unique_ptr<LlamaReference>(new LlamaReference(std::move(state)));
}

std::uint32_t LlamaReference::vocabulary() const {
  return static_cast<std::uint32_t>(
      llama_vocab_n_tokens(llama_model_get_vocab(state_->model.get())));
}

Result<void> LlamaReference::append(std::span<const TokenId> tokens,
                                    const ReferenceLogitsCallback& on_logits) {
  llama_batch& batch = state_->batch;
  while (!tokens.empty()) {
    const std::size_t rows = std::min<std::size_t>(tokens.size(), state_->batch_tokens);
    batch.n_tokens = static_cast<std::int32_t>(rows);
    for (std::size_t row = 0; row < rows; ++row) {
      batch.token[row] = tokens[row];
      batch.pos[row] = static_cast<llama_pos>(state_->position + row);
      batch.n_seq_id[row] = 1;
      batch.seq_id[row][0] = 0;
      batch.logits[row] = on_logits ? 1 : 0;
    }
    if (llama_decode(state_->context.get(), batch) != 0) {
      return Error{ErrorCode::internal,
                   "llama.cpp fails at position " + std::to_string(state_->position)};
    }
    tokens = tokens.subspan(rows);
    if (!on_logits) {
      state_->position += static_cast<std::uint32_t>(rows);
      continue;
    }
    for (std::size_t row = 0; row < rows; ++row) {
      const float* logits =
          llama_get_logits_ith(state_->context.get(), static_cast<std::int32_t>(row));
      if (logits == nullptr)
        return Error{ErrorCode::internal, "llama.cpp gives no logits for a row"};
      on_logits(state_->position++, logits);
    }
  }
  return {};
}

Result<void> reference_logits(const std::string& path, std::span<const TokenId> tokens,
                              const ReferenceLogitsCallback& on_logits,
                              LlamaReferenceOptions options) {
  options.context = std::max<std::uint32_t>(static_cast<std::uint32_t>(tokens.size()), 64);
  HEADRACE_TRY_ASSIGN(const auto reference, LlamaReference::open(path, options));
  return reference->append(tokens, on_logits);
}

}  // namespace headrace::test
