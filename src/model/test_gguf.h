// TestGguf: a GGUF file made in memory, whose keys and tensors a test can leave out or spoil.
#pragma once

#include <ggml.h>
#include <gguf.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "model/gguf_file.h"

namespace headrace {

/// For EXPECT_TRUE on messages.
inline testing::AssertionResult contains(const std::string& text, const std::string& part) {
  if (text.find(part) != std::string::npos) return testing::AssertionSuccess();
  return testing::AssertionFailure() << "'" << text << "' lacks '" << part << "'";
}

class TestGguf {
 public:
  TestGguf() : gguf_(gguf_init_empty()) {}

  gguf_context* keys() { return gguf_.get(); }
  void set_text(const char* key, const char* value) { gguf_set_val_str(keys(), key, value); }
  void set_number(const char* key, std::uint32_t value) { gguf_set_val_u32(keys(), key, value); }
  void set_float(const char* key, float value) { gguf_set_val_f32(keys(), key, value); }
  void set_flag(const char* key, bool value) { gguf_set_val_bool(keys(), key, value); }
  void set_numbers(const char* key, const std::vector<std::uint32_t>& values) {
    gguf_set_arr_data(keys(), key, GGUF_TYPE_UINT32, values.data(), values.size());
  }
  void remove_key(const char* key) { gguf_remove_key(keys(), key); }

  /// Adds a tensor of `rows` rows, or replaces the one of that name.
  void set_tensor(const std::string& name, std::int64_t width, std::int64_t rows,
                  const std::vector<float>& values, ggml_type type = GGML_TYPE_F32) {
    remove_tensor(name);
    Tensor tensor = {name, type, width, rows, {}};
    tensor.bytes.resize(ggml_row_size(type, width) * static_cast<std::size_t>(rows));
    if (type == GGML_TYPE_F32) {
      std::memcpy(tensor.bytes.data(), values.data(), tensor.bytes.size());
    } else {
      ggml_quantize_chunk(type, values.data(), tensor.bytes.data(), 0, rows, width, nullptr);
    }
    tensors_.push_back(std::move(tensor));
  }
  void remove_tensor(const std::string& name) {
    std::erase_if(tensors_, [&](const Tensor& tensor) { return tensor.name == name; });
  }
  std::vector<std::string> tensor_names() const {
    std::vector<std::string> names;
    for (const Tensor& tensor : tensors_) names.push_back(tensor.name);
    return names;
  }

  /// The file: metadata, then the tensors, each on a boundary of 32 bytes.
  std::vector<std::byte> bytes() const {
    const std::unique_ptr<gguf_context, Free> whole(gguf_init_empty());
    gguf_set_kv(whole.get(), gguf_.get());
    const std::unique_ptr<ggml_context, Free> headers(
        ggml_init({ggml_tensor_overhead() * (tensors_.size() + 1), nullptr, /*no_alloc=*/true}));
    for (const Tensor& tensor : tensors_) {
      ggml_tensor* header =
          ggml_new_tensor_2d(headers.get(), tensor.type, tensor.width, tensor.rows);
      ggml_set_name(header, tensor.name.c_str());
      gguf_add_tensor(whole.get(), header);
    }
    std::vector<std::byte> file(gguf_get_meta_size(whole.get()));
    gguf_get_meta_data(whole.get(), file.data());
    for (const Tensor& tensor : tensors_) {
      file.insert(file.end(), tensor.bytes.begin(), tensor.bytes.end());
      file.resize(round_up(file.size(), GGUF_DEFAULT_ALIGNMENT));
    }
    return file;
  }

 private:
  struct Free {
    void operator()(gguf_context* context) const { gguf_free(context); }
    void operator()(ggml_context* context) const { ggml_free(context); }
  };
  struct Tensor {
    std::string name;
    ggml_type type;
    std::int64_t width;
    std::int64_t rows;
    std::vector<std::byte> bytes;
  };

  std::unique_ptr<gguf_context, Free> gguf_;
  std::vector<Tensor> tensors_;
};

/// Bytes and the file over them.
struct OpenedGguf {
  explicit OpenedGguf(const TestGguf& gguf)
      : bytes(gguf.bytes()), file(GgufFile::open(bytes, "test.gguf").value()) {}

  std::vector<std::byte> bytes;
  GgufFile file;
};

/// Geometry of the tiny model.
struct TestLlama {
  std::string architecture = "llama";
  std::uint32_t layers = 2;
  std::uint32_t embedding = 64;
  std::uint32_t query_heads = 4;
  std::uint32_t kv_heads = 2;
  std::uint32_t head_dim = 32;
  std::uint32_t feed_forward = 96;
  std::uint32_t vocabulary = 50;
  ggml_type weights = GGML_TYPE_F32;
  bool biases = false;
};

/// A whole model with random weights.
inline TestGguf test_llama(const TestLlama& shape = {}) {
  TestGguf gguf;
  const auto key = [&](const char* name) { return shape.architecture + "." + name; };
  const auto set_number = [&](const char* name, std::uint32_t value) {
    gguf.set_number(key(name).c_str(), value);
  };
  gguf.set_text("general.architecture", shape.architecture.c_str());
  gguf.set_text("general.name", "Tiny");
  set_number("block_count", shape.layers);
  set_number("context_length", 512);
  set_number("embedding_length", shape.embedding);
  set_number("feed_forward_length", shape.feed_forward);
  set_number("attention.head_count", shape.query_heads);
  set_number("attention.head_count_kv", shape.kv_heads);
  set_number("attention.key_length", shape.head_dim);
  gguf.set_float(key("attention.layer_norm_rms_epsilon").c_str(), 1e-5F);
  if (shape.architecture == "granite") gguf.set_float("granite.logit_scale", 4.0F);
  std::mt19937 random(1);
  const auto add = [&](const std::string& name, std::uint32_t width, std::uint32_t rows,
                       ggml_type type, double mean, double deviation) {
    std::normal_distribution<double> normal(mean, deviation);
    std::vector<float> values(std::size_t{width} * rows);
    for (float& value : values) value = static_cast<float>(normal(random));
    gguf.set_tensor(name, width, rows, values, type);
  };
  const auto matrix = [&](const std::string& name, std::uint32_t width, std::uint32_t rows) {
    add(name + ".weight", width, rows, shape.weights, 0.0, 0.2);
    if (shape.biases && name.find("attn") != std::string::npos) {
      add(name + ".bias", rows, 1, GGML_TYPE_F32, 0.0, 0.2);
    }
  };
  const std::uint32_t query_width = shape.query_heads * shape.head_dim;
  const std::uint32_t kv_width = shape.kv_heads * shape.head_dim;
  matrix("token_embd", shape.embedding, shape.vocabulary);
  add("output_norm.weight", shape.embedding, 1, GGML_TYPE_F32, 1.0, 0.1);
  for (std::uint32_t i = 0; i < shape.layers; ++i) {
    const std::string block = "blk." + std::to_string(i) + ".";
    const auto norm = [&](const char* name, std::uint32_t width) {
      add(block + name + ".weight", width, 1, GGML_TYPE_F32, 1.0, 0.1);
    };
    const bool is_phi = shape.architecture == "phi3";
    const bool is_gemma = shape.architecture == "gemma3";
    norm("attn_norm", shape.embedding);
    if (is_phi) {
      matrix(block + "attn_qkv", shape.embedding, query_width + 2 * kv_width);
    } else {
      matrix(block + "attn_q", shape.embedding, query_width);
      matrix(block + "attn_k", shape.embedding, kv_width);
      matrix(block + "attn_v", shape.embedding, kv_width);
    }
    if (is_gemma || shape.architecture == "qwen3") {
      norm("attn_q_norm", shape.head_dim);
      norm("attn_k_norm", shape.head_dim);
    }
    matrix(block + "attn_output", query_width, shape.embedding);
    norm("ffn_norm", shape.embedding);
    if (!is_phi) matrix(block + "ffn_gate", shape.embedding, shape.feed_forward);
    matrix(block + "ffn_up", shape.embedding, shape.feed_forward * (is_phi ? 2 : 1));
    matrix(block + "ffn_down", shape.feed_forward, shape.embedding);
    if (is_gemma) {
      norm("post_attention_norm", shape.embedding);
      norm("post_ffw_norm", shape.embedding);
    }
  }
  return gguf;
}

}  // namespace headrace
