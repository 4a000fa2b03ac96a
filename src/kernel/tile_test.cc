// Tiles of pages and their quantised forms.
#include <algorithm>
#include <cmath>

#include "kernel/kernel_test.h"

namespace headrace::kernel {
namespace {

constexpr std::uint32_t tokens = 64;

/// A page of one kv head that owns its memory.
struct TestPage {
  TestPage(KvType type, std::uint32_t head_dim)
      : k(tokens * key_bytes(type, head_dim)),
        v(tokens * value_bytes(type, head_dim)),
        head{k.data(), v.data(), type, tokens, head_dim} {}

  std::vector<std::byte> k;
  std::vector<std::byte> v;
  PageHead head;
};

/// [dim][16 tokens] of rows [16 tokens][dim].
std::vector<float> tile_of(const std::vector<float>& rows, std::uint32_t head_dim) {
  std::vector<float> tile(rows.size());
  for (std::uint32_t t = 0; t < lanes; ++t) {
    for (std::uint32_t d = 0; d < head_dim; ++d) tile[d * lanes + t] = rows[t * head_dim + d];
  }
  return tile;
}

class Tiles : public KernelTest {};
HEADRACE_TEST_EVERY_TABLE(Tiles);

TEST_P(Tiles, AStoredTileIsWhatStoringItsRowsGives) {
  TestRandom random(61);
  for (const KvType type : kv_types) {
    for (const std::uint32_t head_dim : {32U, 64U, 96U, 80U}) {
      if (type == KvType::q8 && head_dim % 32 != 0) continue;
      const std::vector<float> k = random.normals(std::size_t{lanes} * head_dim);
      const std::vector<float> v = random.normals(std::size_t{lanes} * head_dim);
      TestPage by_rows(type, head_dim);
      TestPage by_tile(type, head_dim);
      table.store_kv(k.data(), v.data(), head_dim, 32, lanes, by_rows.head);
      table.store_tile(tile_of(k, head_dim).data(), tile_of(v, head_dim).data(), 2, by_tile.head);
      EXPECT_EQ(by_rows.k, by_tile.k) << to_string(type) << " " << head_dim;
      EXPECT_EQ(by_rows.v, by_tile.v) << to_string(type) << " " << head_dim;

      // Loading gives values that are stored as the same bytes again, but for the types whose scale
      // is rounded anew: those stay near.
      std::vector<float> k_back(k.size());
      std::vector<float> v_back(v.size());
      table.load_tile(by_tile.head, 2, k_back.data(), v_back.data());
      const float bound = type == KvType::q8 ? 0.03F : 0.016F;
      for (std::size_t i = 0; i < k.size(); ++i) {
        ASSERT_NEAR(k_back[i], tile_of(k, head_dim)[i], bound) << to_string(type) << " " << i;
        ASSERT_NEAR(v_back[i], tile_of(v, head_dim)[i], bound) << to_string(type) << " " << i;
      }
    }
  }
}

TEST_P(Tiles, RotatingTwiceGivesTheSameAgain) {
  TestRandom random(62);
  for (const std::uint32_t size : {16U, 32U, 64U}) {
    const std::vector<float> x = random.normals(std::size_t{lanes} * 192);
    std::vector<float> y = x;
    table.rotate_tile(y.data(), size, 1.0F / static_cast<float>(size), 192);
    table.rotate_tile(y.data(), size, 1.0F, 192);
    for (std::size_t i = 0; i < x.size(); ++i) ASSERT_NEAR(x[i], y[i], 1e-5F);
  }
}

TEST_P(Tiles, QuantisedTilesComeBackWithinHalfAStep) {
  TestRandom random(63);
  for (const std::uint32_t head_dim : {32U, 48U, 64U, 80U}) {
    const std::vector<float> x = random.normals(std::size_t{lanes} * head_dim);
    std::vector<float> back(x.size());
    std::vector<std::byte> bytes(tile_bytes_8(head_dim));
    EXPECT_EQ(table.quantize_tile_8(x.data(), head_dim, bytes.data()), bytes.size());
    table.restore_tile_8(bytes.data(), head_dim, back.data());
    for (std::size_t i = 0; i < x.size(); ++i) ASSERT_NEAR(x[i], back[i], 5.0F / 127.0F);
    bytes.resize(tile_bytes_4(head_dim));
    EXPECT_EQ(table.quantize_tile_4(x.data(), head_dim, bytes.data()), bytes.size());
    table.restore_tile_4(bytes.data(), head_dim, back.data());
    double error = 0;
    for (std::size_t i = 0; i < x.size(); ++i) error += std::pow(x[i] - back[i], 2);
    EXPECT_LT(error / static_cast<double>(x.size()), 0.012);  // of normal values: 19 dB below them
  }
}

TEST_P(Tiles, LevelsAreTheNearestMultiplesOfTheirSteps) {
  TestRandom random(65);
  constexpr std::uint32_t head_dim = 48;
  constexpr std::size_t stride = 40;
  const std::vector<float> x = random.normals(std::size_t{lanes} * head_dim);
  std::vector<float> steps(x.size());
  std::vector<float> inverses(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    steps[i] = std::ldexp(1.0F, -static_cast<int>(i % 7));  // powers of two: exact both ways
    inverses[i] = 1.0F / steps[i];
  }
  for (const std::size_t by_dim : {std::size_t{0}, std::size_t{lanes}}) {
    std::vector<std::int8_t> levels(head_dim * stride, 99);
    std::vector<float> back(x.size());
    table.quantize_levels(x.data(), {inverses.data(), by_dim}, head_dim, stride, levels.data());
    table.restore_levels(levels.data(), stride, {steps.data(), by_dim}, head_dim, back.data());
    for (std::size_t d = 0; d < head_dim; ++d) {
      for (std::size_t i = 0; i < lanes; ++i) {
        const float step = steps[d * by_dim + i];
        const float level = std::clamp(std::nearbyint(x[d * lanes + i] / step), -127.0F, 127.0F);
        ASSERT_EQ(levels[d * stride + i], level);
        ASSERT_EQ(back[d * lanes + i], level * step);
      }
      ASSERT_EQ(levels[d * stride + lanes], 99) << "what lies between is left alone";
    }
  }
}

TEST_P(Tiles, ZerosStayZerosAndHugeValuesStayFinite) {
  std::vector<float> x(std::size_t{lanes} * 32);
  x[3] = 3e38F;
  x[4] = 1e-30F;
  std::vector<float> back(x.size(), 1.0F);
  std::vector<std::byte> bytes(tile_bytes_8(32));
  table.quantize_tile_8(x.data(), 32, bytes.data());
  table.restore_tile_8(bytes.data(), 32, back.data());
  for (const float value : back) ASSERT_TRUE(std::isfinite(value));
  table.quantize_tile_4(x.data(), 32, bytes.data());
  table.restore_tile_4(bytes.data(), 32, back.data());
  for (std::size_t i = 0; i < back.size(); ++i) {
    ASSERT_TRUE(std::isfinite(back[i]));
    if (i % lanes != 3) {
      ASSERT_EQ(back[i], 0.0F) << i;
    }
  }
}

TEST_P(Tiles, EveryTableGivesTheBitsOfThePlainOne) {
  const KernelTable& plain = *find_kernels("scalar");
  TestRandom random(64);
  for (const KvType type : kv_types) {
    const std::uint32_t head_dim = type == KvType::q8 ? 96 : 80;
    TestPage page(type, head_dim);
    const std::vector<float> rows = random.normals(std::size_t{2} * lanes * head_dim);
    plain.store_kv(rows.data(), rows.data() + lanes * head_dim, head_dim, 16, lanes, page.head);
    const auto run = [&](const KernelTable& kernels) {
      std::vector<float> k(std::size_t{lanes} * head_dim);
      std::vector<float> v(k.size());
      kernels.load_tile(page.head, 1, k.data(), v.data());
      std::vector<std::uint16_t> means(head_dim);
      kernels.tile_means(k.data(), 13, head_dim, means.data());
      kernels.shift_tile(k.data(), means.data(), -1.0F, head_dim);
      kernels.rotate_tile(k.data(), 16, 0.25F, head_dim);
      std::vector<std::byte> bytes(tile_bytes_8(head_dim) + tile_bytes_4(head_dim));
      kernels.quantize_tile_8(v.data(), head_dim, bytes.data());
      kernels.quantize_tile_4(k.data(), head_dim, bytes.data() + tile_bytes_8(head_dim));
      kernels.restore_tile_8(bytes.data(), head_dim, v.data());
      kernels.restore_tile_4(bytes.data() + tile_bytes_8(head_dim), head_dim, k.data());
      kernels.shift_tile(k.data(), means.data(), 1.0F, head_dim);
      TestPage out(type, head_dim);
      kernels.store_tile(k.data(), v.data(), 3, out.head);
      bytes.insert(bytes.end(), out.k.begin(), out.k.end());
      bytes.insert(bytes.end(), out.v.begin(), out.v.end());
      return bytes;
    };
    EXPECT_EQ(run(plain), run(table)) << to_string(type);
  }
}

TEST_P(Tiles, EveryTableDecodesWordsAsThePlainOneDoes) {
  const KernelTable& plain = *find_kernels("scalar");
  TestRandom random(65);
  for (int round = 0; round < 50; ++round) {
    std::vector<std::uint32_t> slots(rans_slots);
    for (std::uint32_t slot = 0, symbol = 0; slot < rans_slots; ++symbol) {
      const std::uint32_t frequency = std::min(1 + random.below(200), rans_slots - slot);
      for (std::uint32_t i = 0; i < frequency; ++i) {
        slots[slot++] = frequency | i << rans_bits | symbol << 24;
      }
    }
    std::vector<std::byte> words(random.below(4'000));
    for (std::byte& byte : words) byte = static_cast<std::byte>(random.bits());
    RansReader start;
    for (std::uint32_t& state : start.states) state = random.bits();
    start.next = words.data();
    start.end = words.data() + words.size();
    const std::size_t count = std::size_t{rans_lanes} * (1 + random.below(100));
    RansReader expected = start;
    RansReader actual = start;
    std::vector<std::uint8_t> expected_out(count);
    std::vector<std::uint8_t> actual_out(count);
    const bool enough = plain.rans_decode(expected, slots.data(), count, expected_out.data());
    ASSERT_EQ(table.rans_decode(actual, slots.data(), count, actual_out.data()), enough);
    if (!enough) continue;
    EXPECT_EQ(expected_out, actual_out);
    EXPECT_EQ(expected.next, actual.next);
    EXPECT_TRUE(std::ranges::equal(expected.states, actual.states));
  }
}

TEST_P(Tiles, HalvesThatWereSplitJoinAgain) {
  TestRandom random(66);
  constexpr std::size_t count = std::size_t{lanes} * 48;
  std::vector<std::uint16_t> references(48);
  for (std::uint16_t& value : references) value = static_cast<std::uint16_t>(random.bits());
  std::vector<std::uint16_t> in(count);
  for (std::uint16_t& value : in) value = static_cast<std::uint16_t>(random.bits());
  for (const HalfForm form :
       {HalfForm::as_is, HalfForm::sign_last, HalfForm::lines_less_reference}) {
    std::vector<std::uint8_t> upper(count);
    std::vector<std::uint8_t> lower(count);
    std::vector<std::uint16_t> out(count);
    table.split_halves(form, in.data(), count, references.data(), upper.data(), lower.data());
    table.join_halves(form, upper.data(), lower.data(), count, references.data(), out.data());
    EXPECT_EQ(in, out);
  }
}

}  // namespace
}  // namespace headrace::kernel
