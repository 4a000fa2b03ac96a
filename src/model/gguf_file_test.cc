#include "model/gguf_file.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <random>

#include "model/test_gguf.h"

namespace headrace {
namespace {

Error open_error(Bytes bytes) {
  const Result<GgufFile> file = GgufFile::open(bytes, "some.gguf");
  EXPECT_FALSE(file.ok());
  return file.ok() ? Error{ErrorCode::internal, "opened"} : file.error();
}

TEST(GgufFile, KeepsNamesShapesAndBytesOfItsTensors) {
  TestGguf gguf;
  gguf.set_tensor("first", 3, 2, {1, 2, 3, 4, 5, 6});
  gguf.set_tensor("second", 32, 1, std::vector<float>(32, 1.0F), GGML_TYPE_Q8_0);
  const OpenedGguf opened(gguf);
  ASSERT_EQ(opened.file.tensors().size(), 2U);
  const TensorInfo* first = opened.file.find_tensor("first");
  ASSERT_NE(first, nullptr);
  EXPECT_EQ(first->type, GGML_TYPE_F32);
  EXPECT_EQ(first->width, 3U);
  EXPECT_EQ(first->rows, 2U);
  ASSERT_EQ(first->bytes.size(), 24U);
  float last = 0;
  std::memcpy(&last, first->bytes.data() + 20, 4);
  EXPECT_EQ(last, 6.0F);
  const TensorInfo* second = opened.file.find_tensor("second");
  ASSERT_NE(second, nullptr);
  EXPECT_EQ(second->type, GGML_TYPE_Q8_0);
  EXPECT_EQ(second->bytes.size(), 34U);
  EXPECT_EQ(opened.file.find_tensor("third"), nullptr);
  EXPECT_EQ(opened.file.file_bytes(), opened.bytes.size());
}

TEST(GgufFile, ReadsWholeNumbersOfEveryWidth) {
  TestGguf gguf;
  gguf_set_val_u8(gguf.keys(), "u8", 200);
  gguf_set_val_u16(gguf.keys(), "u16", 60'000);
  gguf_set_val_u32(gguf.keys(), "u32", 4'000'000'000);
  gguf_set_val_u64(gguf.keys(), "u64", 5'000'000'000);
  gguf_set_val_i8(gguf.keys(), "i8", 100);
  gguf_set_val_i16(gguf.keys(), "i16", 30'000);
  gguf_set_val_i32(gguf.keys(), "i32", 2'000'000'000);
  gguf_set_val_i64(gguf.keys(), "i64", 6'000'000'000);
  const OpenedGguf opened(gguf);
  const std::pair<const char*, std::uint64_t> expected[] = {
      {"u8", 200}, {"u16", 60'000}, {"u32", 4'000'000'000}, {"u64", 5'000'000'000},
      {"i8", 100}, {"i16", 30'000}, {"i32", 2'000'000'000}, {"i64", 6'000'000'000},
  };
  for (const auto& [key, value] : expected) {
    const auto number = opened.file.get_unsigned(key);
    ASSERT_TRUE(number.ok() && *number) << key;
    EXPECT_EQ(**number, value) << key;
  }
  EXPECT_EQ(opened.file.require_u32("u32").value(), 4'000'000'000U);
  const auto too_large = opened.file.require_u32("u64");
  ASSERT_FALSE(too_large.ok());
  EXPECT_TRUE(contains(too_large.error().message, "'u64' is not a 32-bit number"));
}

TEST(GgufFile, RefusesNegativeNumbers) {
  TestGguf gguf;
  gguf_set_val_i32(gguf.keys(), "layers", -1);
  const auto number = OpenedGguf(gguf).file.get_unsigned("layers");
  ASSERT_FALSE(number.ok());
  EXPECT_EQ(number.error().code, ErrorCode::corrupt);
  EXPECT_TRUE(contains(number.error().message, "'layers' is not a whole number from 0 on"));
}

TEST(GgufFile, NamesTheKeyWhoseTypeIsWrong) {
  TestGguf gguf;
  gguf.set_text("text", "x");
  gguf.set_number("number", 1);
  gguf.set_float("float", 1.0F);
  gguf_set_val_bool(gguf.keys(), "flag", true);
  const OpenedGguf opened(gguf);
  for (const char* key : {"text", "float", "flag"}) {
    const auto value = opened.file.get_unsigned(key);
    ASSERT_FALSE(value.ok()) << key;
    EXPECT_EQ(value.error().code, ErrorCode::corrupt);
    EXPECT_EQ(value.error().message,
              "'test.gguf': the value of '" + std::string(key) + "' is not a whole number");
    EXPECT_FALSE(opened.file.require_u32(key).ok()) << key;
  }
  for (const char* key : {"text", "number", "flag"}) {
    EXPECT_FALSE(opened.file.get_float(key).ok()) << key;
    EXPECT_FALSE(opened.file.require_float(key).ok()) << key;
  }
  for (const char* key : {"number", "float", "flag"}) {
    EXPECT_FALSE(opened.file.get_string(key).ok()) << key;
    EXPECT_FALSE(opened.file.require_string(key).ok()) << key;
  }
}

TEST(GgufFile, AMissingKeyIsNothingUntilItIsRequired) {
  const OpenedGguf opened{TestGguf()};
  EXPECT_FALSE(opened.file.get_unsigned("a.b").value().has_value());
  EXPECT_FALSE(opened.file.get_float("a.b").value().has_value());
  EXPECT_FALSE(opened.file.get_string("a.b").value().has_value());
  EXPECT_EQ(opened.file.array_length("a.b"), 0U);
  EXPECT_FALSE(opened.file.has_key("a.b"));
  const auto number = opened.file.require_u32("a.b");
  ASSERT_FALSE(number.ok());
  EXPECT_EQ(number.error().code, ErrorCode::corrupt);
  EXPECT_EQ(number.error().message, "'test.gguf' lacks the value 'a.b'");
  EXPECT_FALSE(opened.file.require_float("a.b").ok());
  EXPECT_FALSE(opened.file.require_string("a.b").ok());
}

TEST(GgufFile, CountsArrays) {
  TestGguf gguf;
  const std::int32_t values[] = {1, 2, 3};
  gguf_set_arr_data(gguf.keys(), "array", GGUF_TYPE_INT32, values, 3);
  gguf.set_number("number", 7);
  const OpenedGguf opened(gguf);
  EXPECT_EQ(opened.file.array_length("array"), 3U);
  EXPECT_EQ(opened.file.array_length("number"), 0U);
  EXPECT_TRUE(opened.file.has_key("array"));
}

TEST(GgufFile, ReadsArraysOfWholeNumbersAndOfFlags) {
  TestGguf gguf;
  const std::int32_t signed_values[] = {1, 0, 3};
  const std::uint64_t wide_values[] = {std::uint64_t{1} << 40};
  const std::int8_t flags[] = {1, 0};
  const std::int64_t negative[] = {4, -1};
  const float floats[] = {1.0F};
  gguf_set_arr_data(gguf.keys(), "signed", GGUF_TYPE_INT32, signed_values, 3);
  gguf_set_arr_data(gguf.keys(), "wide", GGUF_TYPE_UINT64, wide_values, 1);
  gguf_set_arr_data(gguf.keys(), "flags", GGUF_TYPE_BOOL, flags, 2);
  gguf_set_arr_data(gguf.keys(), "negative", GGUF_TYPE_INT64, negative, 2);
  gguf_set_arr_data(gguf.keys(), "floats", GGUF_TYPE_FLOAT32, floats, 1);
  gguf.set_number("number", 7);
  const OpenedGguf opened(gguf);
  using Numbers = std::vector<std::uint64_t>;
  EXPECT_EQ(opened.file.get_unsigned_array("signed").value(), (Numbers{1, 0, 3}));
  EXPECT_EQ(opened.file.get_unsigned_array("wide").value(), Numbers{std::uint64_t{1} << 40});
  EXPECT_EQ(opened.file.get_unsigned_array("flags").value(), (Numbers{1, 0}));
  for (const char* key : {"negative", "floats", "number", "missing"}) {
    const auto values = opened.file.get_unsigned_array(key);
    ASSERT_FALSE(values.ok()) << key;
    EXPECT_EQ(values.error().code, ErrorCode::corrupt) << key;
  }
}

TEST(GgufFile, ReadsFlags) {
  TestGguf gguf;
  gguf.set_flag("on", true);
  gguf.set_flag("off", false);
  gguf.set_number("number", 1);
  const OpenedGguf opened(gguf);
  EXPECT_EQ(opened.file.get_bool("on").value(), std::optional(true));
  EXPECT_EQ(opened.file.get_bool("off").value(), std::optional(false));
  EXPECT_EQ(opened.file.get_bool("missing").value(), std::nullopt);
  EXPECT_FALSE(opened.file.get_bool("number").ok());
}

TEST(GgufFile, AForeignFileIsNamedAsSuch) {
  for (const std::string text :
       {"", "GGU", "GGML file of old", "PK\3\4 a zip archive of any kind"}) {
    const Error error = open_error(std::as_bytes(std::span(text)));
    EXPECT_EQ(error.code, ErrorCode::corrupt) << text;
    EXPECT_TRUE(contains(error.message, "'some.gguf' is not a GGUF model file"));
  }
}

// Every place where a download may have stopped.
TEST(GgufFile, AFileCutShortAnywhereIsCorrupt) {
  const std::vector<std::byte> bytes = test_llama().bytes();
  const GgufFile whole = GgufFile::open(bytes, "whole.gguf").value();
  const std::size_t last_byte =
      static_cast<std::size_t>(whole.tensors().back().bytes.data() - bytes.data()) +
      whole.tensors().back().bytes.size();
  const std::size_t data =
      static_cast<std::size_t>(whole.tensors().front().bytes.data() - bytes.data());
  std::size_t step = 1;
  for (std::size_t size = 0; size < last_byte; size += step) {
    if (size > data) step = 997;
    // A copy, so that a sanitizer sees reads behind the end.
    const std::vector<std::byte> part(bytes.begin(),
                                      bytes.begin() + static_cast<std::ptrdiff_t>(size));
    const Error error = open_error(part);
    ASSERT_EQ(error.code, ErrorCode::corrupt) << "cut to " << size;
    ASSERT_TRUE(contains(error.message, "some.gguf")) << "cut to " << size;
    if (size >= 4 && size < data) {
      ASSERT_TRUE(contains(error.message, "get the file again")) << "cut to " << size;
    }
  }
  EXPECT_TRUE(GgufFile::open(Bytes(bytes).first(last_byte), "last padding missing").ok());
}

TEST(GgufFile, NamesTheTensorThatReachesBeyondTheFile) {
  TestGguf gguf;
  gguf.set_tensor("first", 32, 4, std::vector<float>(128));
  gguf.set_tensor("second", 32, 4, std::vector<float>(128));
  std::vector<std::byte> bytes = gguf.bytes();
  const std::size_t whole = bytes.size();
  bytes.pop_back();
  const Error error = open_error(bytes);
  EXPECT_EQ(error.code, ErrorCode::corrupt);
  EXPECT_EQ(error.message, "'some.gguf' is cut short: tensor 'second' ends at byte " +
                               std::to_string(whole) + " and the file has " +
                               std::to_string(whole - 1) + "; get the file again");
}

TEST(GgufFile, DamagedMetadataEitherOpenOrAreCorrupt) {
  const std::vector<std::byte> bytes = test_llama().bytes();
  const unsigned seed = 71;
  std::printf("seed=%u\n", seed);
  std::mt19937 random(seed);
  int refused = 0;
  for (int i = 0; i < 2000; ++i) {
    std::vector<std::byte> damaged(bytes.begin(), bytes.begin() + 3000);
    for (auto flips = 1 + random() % 3; flips > 0; --flips) {
      damaged[4 + random() % 2500] ^= static_cast<std::byte>(1U << random() % 8);
    }
    damaged.resize(bytes.size());
    const Result<GgufFile> file = GgufFile::open(damaged, "damaged.gguf");
    if (file.ok()) continue;
    ++refused;
    ASSERT_EQ(file.error().code, ErrorCode::corrupt);
    ASSERT_TRUE(contains(file.error().message, "damaged.gguf"));
  }
  EXPECT_GT(refused, 100);
}

}  // namespace
}  // namespace headrace
