// Keys and values that are computed from kept hidden states have the bits of those that the forward
// pass wrote.
#include "model/kv_projector.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <random>
#include <thread>

#include "base/serial_parallel.h"
#include "model/forward.h"
#include "model/test_gguf.h"
#include "model/test_kv.h"

namespace headrace {
namespace {

constexpr std::uint32_t tokens_max = 100;
constexpr std::uint32_t page_tokens = 32;
constexpr HiddenType types[] = {HiddenType::f32, HiddenType::f16, HiddenType::q8};

std::vector<TokenId> random_tokens(unsigned seed) {
  std::printf("seed=%u\n", seed);
  std::mt19937 random(seed);
  std::vector<TokenId> tokens(tokens_max);
  for (TokenId& token : tokens) token = static_cast<TokenId>(random() % 50);
  return tokens;
}

struct LoadedModel {
  explicit LoadedModel(const TestLlama& options, KvType kv_type = KvType::i16)
      : opened(test_llama(options)),
        model(load_model(opened.file).value()),
        page{page_tokens, model.shape.kv_heads, model.shape.head_dim, kv_type} {}

  /// Reads the text in chunks, and gives its pages and, with `kept`, its hidden states.
  TestKv read(std::optional<HiddenType> kept, std::uint32_t chunk = 17) const {
    TestKv kv(page, model.shape.layers);
    if (kept) kv.keep_hidden(hidden_row_bytes(*kept, model.shape.embedding), tokens_max);
    SerialParallel serial;
    ForwardPass pass = ForwardPass::create(model, serial, page, chunk, kept).value();
    const std::vector<TokenId> tokens = random_tokens(21);
    for (std::uint32_t first = 0; first < tokens_max; first += chunk) {
      const std::uint32_t count = std::min(chunk, tokens_max - first);
      kv.begin_step(first, count);
      EXPECT_TRUE(pass.run({.kv = &kv,
                            .tokens = std::span(tokens).subspan(first, count),
                            .first_position = first,
                            .first_logits_row = count},
                           [](std::uint32_t, const float*) { return true; })
                      .ok());
    }
    return kv;
  }

  OpenedGguf opened;
  Model model;
  PageShape page;
};

/// Whether pages that come from kept rows, of which `at_once` are projected together, are those of
/// `kv`.
testing::AssertionResult gives_pages(KvProjector& projector, const LoadedModel& loaded,
                                     const TestKv& kv, std::uint32_t at_once) {
  const std::size_t row_bytes = projector.row_bytes();
  for (std::uint32_t layer = 0; layer < loaded.model.shape.layers; ++layer) {
    for (std::uint32_t first = 0; first < tokens_max; first += page_tokens) {
      AlignedBuffer page = AlignedBuffer::allocate(loaded.page.bytes()).value();
      std::ranges::fill(page.span(), std::byte{0});
      const std::uint32_t held = std::min(page_tokens, tokens_max - first);
      for (std::uint32_t token = 0; token < held; token += at_once) {
        const std::uint32_t count = std::min(at_once, held - token);
        projector.project(layer, first + token,
                          kv.hidden(layer).subspan((first + token) * row_bytes, count * row_bytes),
                          loaded.page, token, page.data());
      }
      if (!std::ranges::equal(page.span(), kv.page(layer, first / page_tokens)))
        return testing::AssertionFailure() << "layer " << layer << ", tokens from " << first;
    }
  }
  return testing::AssertionSuccess();
}

void expect_the_same_pages(const TestLlama& options, KvType kv_type = KvType::i16) {
  const LoadedModel loaded(options, kv_type);
  for (const HiddenType type : types) {
    SCOPED_TRACE("kept as " + std::to_string(static_cast<int>(type)));
    const TestKv kv = loaded.read(type);
    EXPECT_TRUE(kv == loaded.read(type, 1)) << "chunks change no bit";
    const auto projector = KvProjector::create(loaded.model, type, 1).value();
    for (const std::uint32_t at_once : {8U, page_tokens})
      EXPECT_TRUE(gives_pages(*projector, loaded, kv, at_once)) << at_once << " tokens at once";
  }
}

TEST(KvProjector, GivesThePagesOfTheForwardPassForEveryKindOfWeights) {
  for (const ggml_type type :
       {GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_Q4_0, GGML_TYPE_Q4_1, GGML_TYPE_Q8_0}) {
    SCOPED_TRACE(ggml_type_name(type));
    expect_the_same_pages({.weights = type});
  }
}

TEST(KvProjector, GivesThemForEveryTypeOfPage) {
  for (const KvType type : {KvType::f32, KvType::f16, KvType::bf16, KvType::q8}) {
    SCOPED_TRACE(to_string(type));
    expect_the_same_pages({.weights = GGML_TYPE_Q4_1}, type);
  }
}

TEST(KvProjector, GivesThemWithBiasesNormsOfHeadsWindowsAndLayersThatAreNotTurned) {
  expect_the_same_pages({.weights = GGML_TYPE_Q8_0, .biases = true});
  for (const char* architecture : {"qwen3", "gemma3", "phi3"}) {
    SCOPED_TRACE(architecture);
    expect_the_same_pages({.architecture = architecture, .layers = 7});
  }
}

TEST(KvProjector, WhatIsKeptOfF32ChangesNoPage) {
  for (const ggml_type type : {GGML_TYPE_F32, GGML_TYPE_Q4_1}) {
    const LoadedModel loaded({.weights = type});
    EXPECT_TRUE(loaded.read(HiddenType::f32) == loaded.read({}));
  }
}

TEST(KvProjector, EightBitsAreAllThatIntegerWeightsRead) {
  const LoadedModel integers({.weights = GGML_TYPE_Q4_1});
  EXPECT_TRUE(integers.read(HiddenType::q8) == integers.read({}));
  EXPECT_FALSE(integers.read(HiddenType::f16) == integers.read({}));
  const LoadedModel floats({.weights = GGML_TYPE_F32});
  EXPECT_FALSE(floats.read(HiddenType::q8) == floats.read({}));
}

TEST(KvProjector, ServesMoreThreadsThanItHasWorkspaces) {
  const LoadedModel loaded({.weights = GGML_TYPE_Q4_1});
  const TestKv kv = loaded.read(HiddenType::q8);
  const auto projector = KvProjector::create(loaded.model, HiddenType::q8, 2).value();
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < 8; ++round)
        EXPECT_TRUE(gives_pages(*projector, loaded, kv, page_tokens));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(KvProjector, RowsThatCannotBeKeptSoAreRefused) {
  const LoadedModel loaded({.embedding = 48, .feed_forward = 96});
  const auto projector = KvProjector::create(loaded.model, HiddenType::q8, 1);
  ASSERT_FALSE(projector.ok());
  EXPECT_EQ(projector.error().code, ErrorCode::unsupported);
  EXPECT_TRUE(contains(projector.error().message, "use hidden-f16"));
}

}  // namespace
}  // namespace headrace
