#include "tests/support/tiny_model.h"

#include <array>
#include <cmath>
#include <cstddef>
#include <list>
#include <random>
#include <span>
#include <string_view>
#include <utility>

#include "tests/support/gguf_handles.h"

namespace headrace::test {
namespace {

constexpr const char* chat_template_text =
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + "
    "'<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
    "{% endif %}";

/// Some tokens are louder than others, as in trained models, so that there is a favourite at most
/// positions.
constexpr double row_spread = 0.5;

constexpr float granite_embedding_scale = 3.0F;
constexpr float granite_residual_scale = 0.5F;

constexpr std::int32_t normal_token_type = 1;
constexpr std::int32_t control_token_type = 3;

/// The printable stand-in that byte-level vocabularies use for a byte, as UTF-8.
std::string byte_token_text(std::uint32_t byte) {
  const auto is_printable = [](std::uint32_t value) {
    return (value >= 33 && value <= 126) || (value >= 161 && value <= 172) || value >= 174;
  };
  std::uint32_t code_point = byte;
  if (!is_printable(byte)) {
    code_point = 256;
    for (std::uint32_t other = 0; other < byte; ++other) code_point += is_printable(other) ? 0 : 1;
  }
  if (code_point < 0x80) return std::string(1, static_cast<char>(code_point));
  return {static_cast<char>(0xC0U | (code_point >> 6U)),
          static_cast<char>(0x80U | (code_point & 0x3FU))};
}

struct VocabularyText {
  std::vector<std::string> tokens;
  std::vector<std::int32_t> types;
  std::vector<std::string> merges;
};

VocabularyText make_vocabulary(std::uint32_t size) {
  VocabularyText result;
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    result.tokens.push_back(byte_token_text(byte));
    result.types.push_back(normal_token_type);
  }
  for (const char* text : {"<|endoftext|>", "<|im_start|>", "<|im_end|>"}) {
    result.tokens.emplace_back(text);
    result.types.push_back(control_token_type);
  }
  // The rest: pairs of letters in a fixed order, each made by one merge.
  constexpr std::string_view letters =
      "etaoinshrdlcumwfgypbvkETAOINSHRDLCUMWFGYPBVK0123456789.,;:-()";
  for (std::size_t pair = 0; result.tokens.size() < size; ++pair) {
    const std::string first(1, letters[pair / letters.size() % letters.size()]);
    const std::string second(1, letters[pair % letters.size()]);
    result.tokens.push_back(first + second);
    result.types.push_back(normal_token_type);
    result.merges.push_back(first + " " + second);
  }
  return result;
}

std::vector<const char*> pointers_to(const std::vector<std::string>& strings) {
  std::vector<const char*> result;
  result.reserve(strings.size());
  for (const std::string& string : strings) result.push_back(string.c_str());
  return result;
}

class TinyModelWriter {
 public:
  explicit TinyModelWriter(const TinyModelOptions& options)
      : options_(options),
        gguf_(gguf_init_empty()),
        ggml_(new_tensor_headers(8 + std::size_t{20} * options.layers)),
        random_(options.seed) {}

  Result<void> write(const std::string& path) {
    HEADRACE_TRY(check_options());
    set_metadata();
    set_vocabulary();
    add_tensors();
    if (!gguf_write_to_file(gguf_.get(), path.c_str(), false)) {
      return Error{ErrorCode::io, "cannot write the model " + path};
    }
    return {};
  }

 private:
  std::uint32_t query_width() const { return options_.query_heads * options_.head_dim; }
  std::uint32_t kv_width() const { return options_.kv_heads * options_.head_dim; }
  std::uint32_t rotated_dims() const {
    return options_.rotated_dims == 0 ? options_.head_dim : options_.rotated_dims;
  }
  bool is(std::string_view architecture) const { return options_.architecture == architecture; }

  Result<void> check_options() const {
    const std::int64_t block = ggml_blck_size(options_.weight_type);
    for (const std::uint32_t row : {options_.embedding, query_width(), options_.feed_forward}) {
      if (row % block != 0) {
        return Error{ErrorCode::invalid_argument, "rows of " + std::to_string(row) +
                                                      " values do not suit " +
                                                      ggml_type_name(options_.weight_type)};
      }
    }
    if (options_.vocabulary < tiny_model_smallest_vocabulary) {
      return Error{ErrorCode::invalid_argument,
                   "the vocabulary is too small for every byte to be a token"};
    }
    return {};
  }

  void set_metadata() {
    gguf_set_val_str(gguf_.get(), "general.architecture", options_.architecture.c_str());
    gguf_set_val_str(gguf_.get(), "general.name", "Tiny random model");
    set_number("block_count", options_.layers);
    set_number("context_length", options_.trained_context);
    set_number("embedding_length", options_.embedding);
    set_number("feed_forward_length", options_.feed_forward);
    set_number("attention.head_count", options_.query_heads);
    set_number("attention.head_count_kv", options_.kv_heads);
    set_number("attention.key_length", options_.head_dim);
    set_number("attention.value_length", options_.head_dim);
    set_float("attention.layer_norm_rms_epsilon", 1e-5F);
    set_number("rope.dimension_count", rotated_dims());
    set_float("rope.freq_base", options_.rope_base);
    set_number("vocab_size", options_.vocabulary);
    set_rope_scaling();
    if (is("gemma3")) {
      if (options_.window != 0) set_number("attention.sliding_window", options_.window);
      if (options_.window_step != 0)
        set_number("attention.sliding_window_pattern", options_.window_step);
      if (options_.logit_cap != 0.0F) set_float("final_logit_softcapping", options_.logit_cap);
    }
    if (is("granite")) {
      set_float("embedding_scale", granite_embedding_scale);
      set_float("residual_scale", granite_residual_scale);
      set_float("attention.scale", 1.5F / std::sqrt(static_cast<float>(options_.head_dim)));
      set_float("logit_scale", 0.8F);
    }
  }

  void set_rope_scaling() {
    const std::string prefix = options_.architecture + ".rope.scaling.";
    if (options_.rope == RopeVariant::linear || options_.rope == RopeVariant::yarn) {
      const char* type = options_.rope == RopeVariant::linear ? "linear" : "yarn";
      gguf_set_val_str(gguf_.get(), (prefix + "type").c_str(), type);
      set_float("rope.scaling.factor", options_.rope_factor);
    }
    if (options_.rope == RopeVariant::yarn ||
        options_.rope == RopeVariant::long_and_short_factors) {
      set_number("rope.scaling.original_context_length", options_.rope_original_context);
      set_float("rope.scaling.attn_factor", options_.rope_attention_factor);
    }
  }

  void set_number(const char* key, std::uint32_t value) {
    gguf_set_val_u32(gguf_.get(), (options_.architecture + "." + key).c_str(), value);
  }
  void set_float(const char* key, float value) {
    gguf_set_val_f32(gguf_.get(), (options_.architecture + "." + key).c_str(), value);
  }

  void set_vocabulary() {
    gguf_context* gguf = gguf_.get();
    const VocabularyText vocabulary = make_vocabulary(options_.vocabulary);
    gguf_set_val_str(gguf, "tokenizer.ggml.model", "gpt2");
    gguf_set_val_str(gguf, "tokenizer.ggml.pre", "gpt-2");
    auto tokens = pointers_to(vocabulary.tokens);
    gguf_set_arr_str(gguf, "tokenizer.ggml.tokens", tokens.data(), tokens.size());
    gguf_set_arr_data(gguf, "tokenizer.ggml.token_type", GGUF_TYPE_INT32, vocabulary.types.data(),
                      vocabulary.types.size());
    auto merges = pointers_to(vocabulary.merges);
    gguf_set_arr_str(gguf, "tokenizer.ggml.merges", merges.data(), merges.size());
    gguf_set_val_u32(gguf, "tokenizer.ggml.bos_token_id", tiny_model_end_token);
    gguf_set_val_u32(gguf, "tokenizer.ggml.eos_token_id", tiny_model_end_token);
    gguf_set_val_bool(gguf, "tokenizer.ggml.add_bos_token", false);
    if (options_.chat_template)
      gguf_set_val_str(gguf, "tokenizer.chat_template", chat_template_text);
  }

  void add_tensors() {
    add_matrix("token_embd.weight", options_.embedding, options_.vocabulary, embedding_deviation(),
               row_spread);
    if (!options_.tied_output) {
      add_matrix("output.weight", options_.embedding, options_.vocabulary, embedding_deviation(),
                 row_spread);
    }
    add_output_norm();
    if (options_.rope == RopeVariant::factors) add_rope_factors("rope_freqs.weight", 0.5F);
    if (options_.rope == RopeVariant::long_and_short_factors) {
      add_rope_factors("rope_factors_short.weight", 0.1F);
      add_rope_factors("rope_factors_long.weight", 0.6F);
    }
    for (std::uint32_t layer = 0; layer < options_.layers; ++layer) {
      add_layer("blk." + std::to_string(layer) + ".");
    }
  }

  /// Gives logits a standard deviation near 1.
  double embedding_deviation() const { return 0.9 / std::sqrt(options_.embedding); }

  /// Random signs, so that a tied model does not simply repeat the token that it has read.
  void add_output_norm() {
    std::vector<float> values(options_.embedding);
    for (float& value : values) {
      value = static_cast<float>((normal_(random_) < 0 ? -1 : 1) * (1.0 + 0.2 * normal_(random_)));
    }
    add_tensor("output_norm.weight", GGML_TYPE_F32, {options_.embedding, 1},
               std::as_bytes(std::span(values)));
  }

  /// What a layer adds is quieter than the embedding, so that rounding noise does not grow from
  /// layer to layer (random layers would amplify it, which trained ones do not), but a wrong
  /// rotation or page still changes the logits.
  void add_layer(const std::string& prefix) {
    const auto fan_in = [](double gain, std::uint32_t inputs) { return gain / std::sqrt(inputs); };
    const double residual_gain =
        0.25 * embedding_deviation() *
        (is("granite") ? granite_embedding_scale / granite_residual_scale : 1.0F);
    const std::uint32_t embedding = options_.embedding;
    const double input_gain = fan_in(1.0, embedding);
    add_vector(prefix + "attn_norm.weight", embedding, 1.0, 0.2);
    if (is("phi3")) {
      add_matrix(prefix + "attn_qkv.weight", embedding, query_width() + 2 * kv_width(), input_gain,
                 0);
    } else {
      add_matrix(prefix + "attn_q.weight", embedding, query_width(), input_gain, 0);
      add_matrix(prefix + "attn_k.weight", embedding, kv_width(), input_gain, 0);
      add_matrix(prefix + "attn_v.weight", embedding, kv_width(), input_gain, 0);
    }
    add_matrix(prefix + "attn_output.weight", query_width(), embedding,
               fan_in(3.0 * residual_gain, query_width()), 0);
    if (options_.biases || is("qwen2")) {
      add_vector(prefix + "attn_q.bias", query_width(), 0, 0.3);
      add_vector(prefix + "attn_k.bias", kv_width(), 0, 0.3);
      add_vector(prefix + "attn_v.bias", kv_width(), 0, 0.3);
    }
    if (options_.biases) add_vector(prefix + "attn_output.bias", embedding, 0, 0.3 * residual_gain);
    if (is("qwen3") || is("gemma3")) {
      add_vector(prefix + "attn_q_norm.weight", options_.head_dim, 1.0, 0.3);
      add_vector(prefix + "attn_k_norm.weight", options_.head_dim, 1.0, 0.3);
    }
    add_vector(prefix + "ffn_norm.weight", embedding, 1.0, 0.2);
    if (is("phi3")) {
      add_matrix(prefix + "ffn_up.weight", embedding, 2 * options_.feed_forward, input_gain, 0);
    } else {
      add_matrix(prefix + "ffn_gate.weight", embedding, options_.feed_forward, input_gain, 0);
      add_matrix(prefix + "ffn_up.weight", embedding, options_.feed_forward, input_gain, 0);
    }
    add_matrix(prefix + "ffn_down.weight", options_.feed_forward, embedding,
               fan_in(2.0 * residual_gain, options_.feed_forward), 0);
    if (is("gemma3")) {  // the embedding is near 1 there
      add_vector(prefix + "post_attention_norm.weight", embedding, 0.4, 0.1);
      add_vector(prefix + "post_ffw_norm.weight", embedding, 0.3, 0.1);
    }
  }

  /// Low frequencies are slowed down, as in Llama 3.1.
  void add_rope_factors(const std::string& name, float step) {
    const std::uint32_t pairs = rotated_dims() / 2;
    std::vector<float> factors(pairs);
    for (std::uint32_t pair = 0; pair < pairs; ++pair) {
      factors[pair] =
          pair < pairs / 2 ? 1.0F : 1.0F + step * static_cast<float>(pair - pairs / 2 + 1);
    }
    add_tensor(name, GGML_TYPE_F32, {pairs, 1}, std::as_bytes(std::span(factors)));
  }

  void add_vector(const std::string& name, std::uint32_t size, double mean, double deviation) {
    std::vector<float> values(size);
    for (float& value : values) value = static_cast<float>(mean + deviation * normal_(random_));
    add_tensor(name, GGML_TYPE_F32, {size, 1}, std::as_bytes(std::span(values)));
  }

  /// `spread`: standard deviation of the logarithm of each row's loudness.
  void add_matrix(const std::string& name, std::uint32_t columns, std::uint32_t rows,
                  double deviation, double spread) {
    std::vector<float> values(std::size_t{columns} * rows);
    for (std::uint32_t row = 0; row < rows; ++row) {
      const double loudness = deviation * std::exp(spread * normal_(random_));
      for (std::uint32_t column = 0; column < columns; ++column) {
        values[std::size_t{row} * columns + column] =
            static_cast<float>(loudness * normal_(random_));
      }
    }
    if (options_.weight_type == GGML_TYPE_F32) {
      add_tensor(name, GGML_TYPE_F32, {columns, rows}, std::as_bytes(std::span(values)));
      return;
    }
    std::vector<std::byte> bytes(ggml_row_size(options_.weight_type, columns) * rows);
    ggml_quantize_chunk(options_.weight_type, values.data(), bytes.data(), 0, rows, columns,
                        nullptr);
    add_tensor(name, options_.weight_type, {columns, rows}, bytes);
  }

  void add_tensor(const std::string& name, ggml_type type, std::array<std::int64_t, 2> shape,
                  std::span<const std::byte> bytes) {
    ggml_tensor* tensor = shape[1] == 1 ? ggml_new_tensor_1d(ggml_.get(), type, shape[0])
                                        : ggml_new_tensor_2d(ggml_.get(), type, shape[0], shape[1]);
    ggml_set_name(tensor, name.c_str());
    data_.emplace_back(bytes.begin(), bytes.end());
    tensor->data = data_.back().data();
    gguf_add_tensor(gguf_.get(), tensor);
  }

  const TinyModelOptions& options_;
  Gguf gguf_;
  Ggml ggml_;
  std::list<std::vector<std::byte>> data_;  // a list: tensors point into it
  std::mt19937_64 random_;
  std::normal_distribution<double> normal_;
};

}  // namespace

TinyModelOptions tiny_model_options(ggml_type type) {
  TinyModelOptions options;
  options.weight_type = type;
  if (ggml_blck_size(type) > 32) {
    options.embedding = 256;
    options.query_heads = 8;
    options.kv_heads = 2;
    options.head_dim = 32;
    options.feed_forward = 512;
  }
  return options;
}

std::vector<std::string> tiny_model_architectures() {
  return {"llama", "qwen2", "qwen3", "gemma3", "phi3", "granite", "smollm3"};
}

TinyModelOptions tiny_model_options(const std::string& architecture, ggml_type type) {
  TinyModelOptions options = tiny_model_options(type);
  options.architecture = architecture;
  options.layers = 3;
  if (architecture == "smollm3") options.layers = 4;  // the last one without rope
  if (architecture == "gemma3") {
    options.layers = 6;  // windows in four of them
    options.window = 24;
    options.window_step = 3;
    options.kv_heads = 1;
    options.rope_base = 1e6F;
  }
  if (architecture == "phi3") {
    options.rope = RopeVariant::long_and_short_factors;
    options.rope_attention_factor = 1.2F;
  }
  return options;
}

Result<void> write_tiny_model(const std::string& path, const TinyModelOptions& options) {
  return TinyModelWriter(options).write(path);
}

std::vector<ggml_type> tiny_model_weight_types() {
  return {GGML_TYPE_F32,  GGML_TYPE_F16,  GGML_TYPE_BF16, GGML_TYPE_Q8_0,  GGML_TYPE_Q4_0,
          GGML_TYPE_Q4_1, GGML_TYPE_Q5_0, GGML_TYPE_Q5_1, GGML_TYPE_Q2_K,  GGML_TYPE_Q3_K,
          GGML_TYPE_Q4_K, GGML_TYPE_Q5_K, GGML_TYPE_Q6_K, GGML_TYPE_IQ4_NL};
}

std::vector<TokenId> random_tokens(std::size_t count, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::uniform_int_distribution<TokenId> any_byte(0, 255);
  std::vector<TokenId> tokens(count);
  for (TokenId& token : tokens) token = any_byte(random);
  return tokens;
}

}  // namespace headrace::test
