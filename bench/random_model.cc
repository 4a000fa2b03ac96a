// Writes a model of the size that people run, with random weights, to measure speed with:
//   random_model OUT.gguf VOCABULARY.gguf
// Geometry of Llama 3.2 1B, weight types as llama.cpp chooses them for Q4_K_M, vocabulary and
// template of the other file. What it says makes no sense.
#include <cstdio>
#include <cstring>
#include <list>
#include <random>
#include <string>
#include <vector>

#include "tests/support/gguf_handles.h"

namespace headrace {
namespace {

constexpr std::uint32_t layers = 16;
constexpr std::uint32_t embedding = 2048;
constexpr std::uint32_t query_heads = 32;
constexpr std::uint32_t kv_heads = 8;
constexpr std::uint32_t head_dim = 64;
constexpr std::uint32_t feed_forward = 8192;
constexpr std::uint32_t context = 32768;

/// Stored units of random weights, made once for each type and then drawn from: quantising a
/// billion numbers would take minutes.
class RandomUnits {
 public:
  explicit RandomUnits(ggml_type type) : type_(type) {
    constexpr std::int64_t rows = 4096;
    const std::int64_t width = ggml_blck_size(type);
    std::normal_distribution<float> normal(0.0F, 0.02F);
    std::vector<float> values(static_cast<std::size_t>(rows * width));
    for (float& value : values) value = normal(random_);
    units_.resize(ggml_row_size(type, width) * rows);
    ggml_quantize_chunk(type, values.data(), units_.data(), 0, rows, width, nullptr);
  }

  std::vector<std::byte> draw(std::size_t bytes) {
    const std::size_t unit = ggml_type_size(type_);
    std::uniform_int_distribution<std::size_t> which(0, units_.size() / unit - 1);
    std::vector<std::byte> drawn(bytes);
    for (std::size_t at = 0; at < bytes; at += unit)
      std::memcpy(drawn.data() + at, units_.data() + which(random_) * unit, unit);
    return drawn;
  }

 private:
  const ggml_type type_;
  std::mt19937 random_{1};
  std::vector<std::byte> units_;
};

class Writer {
 public:
  Writer() : headers_(test::new_tensor_headers(layers * 9 + 2)) {}

  void take_keys(const gguf_context* source) {
    gguf_set_kv(gguf_.get(), source);
    gguf_set_val_str(gguf_.get(), "general.name", "random 1B");
    const auto set = [&](const char* key, std::uint32_t value) {
      gguf_set_val_u32(gguf_.get(), (std::string("llama.") + key).c_str(), value);
    };
    set("block_count", layers);
    set("embedding_length", embedding);
    set("attention.head_count", query_heads);
    set("attention.head_count_kv", kv_heads);
    set("feed_forward_length", feed_forward);
    set("rope.dimension_count", head_dim);
    set("context_length", context);
  }

  void add_tensors(std::uint32_t vocabulary) {
    matrix("token_embd", embedding, vocabulary, q6_k_);
    norm("output_norm");
    for (std::uint32_t i = 0; i < layers; ++i) {
      const std::string block = "blk." + std::to_string(i) + ".";
      RandomUnits& finer = has_more_bits(i) ? q6_k_ : q4_k_;
      norm(block + "attn_norm");
      matrix(block + "attn_q", embedding, query_heads * head_dim, q4_k_);
      matrix(block + "attn_k", embedding, kv_heads * head_dim, q4_k_);
      matrix(block + "attn_v", embedding, kv_heads * head_dim, finer);
      matrix(block + "attn_output", query_heads * head_dim, embedding, q4_k_);
      norm(block + "ffn_norm");
      matrix(block + "ffn_gate", embedding, feed_forward, q4_k_);
      matrix(block + "ffn_up", embedding, feed_forward, q4_k_);
      matrix(block + "ffn_down", feed_forward, embedding, finer);
    }
  }

  bool write(const char* path) const { return gguf_write_to_file(gguf_.get(), path, false); }

 private:
  static bool has_more_bits(std::uint32_t layer) {
    return layer < layers / 8 || layer >= 7 * layers / 8 || (layer - layers / 8) % 3 == 2;
  }

  void add(ggml_tensor* tensor, const std::string& name, std::vector<std::byte> data) {
    ggml_set_name(tensor, (name + ".weight").c_str());
    data_.push_back(std::move(data));
    tensor->data = data_.back().data();
    gguf_add_tensor(gguf_.get(), tensor);
  }

  void matrix(const std::string& name, std::int64_t width, std::int64_t outputs,
              RandomUnits& units) {
    const ggml_type type = &units == &q6_k_ ? GGML_TYPE_Q6_K : GGML_TYPE_Q4_K;
    ggml_tensor* tensor = ggml_new_tensor_2d(headers_.get(), type, width, outputs);
    add(tensor, name, units.draw(ggml_nbytes(tensor)));
  }

  void norm(const std::string& name) {
    const std::vector<float> ones(embedding, 1.0F);
    std::vector<std::byte> bytes(ones.size() * sizeof(float));
    std::memcpy(bytes.data(), ones.data(), bytes.size());
    add(ggml_new_tensor_1d(headers_.get(), GGML_TYPE_F32, embedding), name, std::move(bytes));
  }

  test::Gguf gguf_{gguf_init_empty()};
  test::Ggml headers_;
  RandomUnits q4_k_{GGML_TYPE_Q4_K};
  RandomUnits q6_k_{GGML_TYPE_Q6_K};
  std::list<std::vector<std::byte>> data_;  // a list: tensors point into it
};

int run(const char* path, const char* vocabulary_path) {
  ggml_context* loaded = nullptr;
  const test::Gguf source(gguf_init_from_file(vocabulary_path, {.no_alloc = true, .ctx = &loaded}));
  const test::Ggml tensors(loaded);
  const ggml_tensor* words =
      source && tensors ? ggml_get_tensor(tensors.get(), "token_embd.weight") : nullptr;
  if (words == nullptr) {
    std::fprintf(stderr, "random_model: %s is not a model file\n", vocabulary_path);
    return 1;
  }
  Writer writer;
  writer.take_keys(source.get());
  writer.add_tensors(static_cast<std::uint32_t>(words->ne[1]));
  if (!writer.write(path)) {
    std::fprintf(stderr, "random_model: cannot write %s\n", path);
    return 1;
  }
  return 0;
}

}  // namespace
}  // namespace headrace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr,
                 "usage: random_model OUT.gguf VOCABULARY.gguf (an architecture of llama)\n");
    return 2;
  }
  return headrace::run(argv[1], argv[2]);
}
