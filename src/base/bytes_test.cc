#include "base/bytes.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <random>

namespace headrace {
namespace {

constexpr std::uint64_t kKiB = 1024;
constexpr std::uint64_t kMiB = 1024 * kKiB;
constexpr std::uint64_t kGiB = 1024 * kMiB;

TEST(ByteCount, ReadsPlainNumbersAsBytes) {
  EXPECT_EQ(parse_byte_count("0").value(), 0U);
  EXPECT_EQ(parse_byte_count("4096").value(), 4096U);
  EXPECT_EQ(parse_byte_count("4096 B").value(), 4096U);
  EXPECT_EQ(parse_byte_count("18446744073709551615").value(), UINT64_MAX);
}

TEST(ByteCount, ReadsBinaryAndDecimalUnitsInAnyCase) {
  EXPECT_EQ(parse_byte_count("64MiB").value(), 64 * kMiB);
  EXPECT_EQ(parse_byte_count("64mib").value(), 64 * kMiB);
  EXPECT_EQ(parse_byte_count("2GB").value(), 2'000'000'000U);
  EXPECT_EQ(parse_byte_count("3kB").value(), 3000U);
  EXPECT_EQ(parse_byte_count("512k").value(), 512 * kKiB);
  EXPECT_EQ(parse_byte_count("1T").value(), 1024 * kGiB);
}

TEST(ByteCount, ReadsFractionsAndSpaces) {
  EXPECT_EQ(parse_byte_count("1.5 GiB").value(), kGiB + kGiB / 2);
  EXPECT_EQ(parse_byte_count(" 0.25 M ").value(), kMiB / 4);
  EXPECT_EQ(parse_byte_count("1.999999KB").value(), 1999U);
}

TEST(ByteCount, RejectsAUnitThatDoesNotExist) {
  for (const char* text : {"12 parsecs", "1X", "1kk", "1bytes", "1 Ki", "5iB", "1m b"}) {
    const auto result = parse_byte_count(text);
    ASSERT_FALSE(result.ok()) << text;
    EXPECT_EQ(result.error().code, ErrorCode::invalid_argument);
    EXPECT_NE(result.error().message.find("64MiB"), std::string::npos) << result.error().message;
  }
}

TEST(ByteCount, RejectsWhatIsNotANumber) {
  for (const char* text : {"", " ", "MiB", "-1", "+1", "1.", ".5k", "1.5", "1.5B", "1.2.3k", "0x10",
                           "1e3", "1,5k", "1.0000001k"}) {
    EXPECT_FALSE(parse_byte_count(text).ok()) << text;
  }
}

TEST(ByteCount, RejectsMoreThanSixtyFourBits) {
  for (const char* text : {"18446744073709551616", "16777216T", "99999999999999999999999"}) {
    EXPECT_FALSE(parse_byte_count(text).ok()) << text;
  }
}

TEST(ByteCount, ShowsThreeDigitsAndAUnit) {
  EXPECT_EQ(format_byte_count(0), "0 B");
  EXPECT_EQ(format_byte_count(1023), "1023 B");
  EXPECT_EQ(format_byte_count(kKiB), "1 KiB");
  EXPECT_EQ(format_byte_count(1536), "1.5 KiB");
  EXPECT_EQ(format_byte_count(12 * kMiB), "12 MiB");
  EXPECT_EQ(format_byte_count(24'746'394), "23.6 MiB");
  EXPECT_EQ(format_byte_count(kGiB + kGiB / 4), "1.25 GiB");
  EXPECT_EQ(format_byte_count(100 * kGiB), "100 GiB");
  EXPECT_EQ(format_byte_count(UINT64_MAX), "16384 PiB");
}

TEST(ByteCount, NeverShows1024OfAUnit) {
  EXPECT_EQ(format_byte_count(kMiB - 1), "1 MiB");
  EXPECT_EQ(format_byte_count(kGiB - 1), "1 GiB");
  EXPECT_EQ(format_byte_count(1023 * kKiB), "1023 KiB");
}

TEST(ByteCount, ReadsBackWhatItShowsWithinHalfAPercent) {
  const std::uint64_t seed = std::random_device()();
  std::printf("seed=%llu\n", static_cast<unsigned long long>(seed));
  std::mt19937_64 random(seed);
  for (int i = 0; i < 1000; ++i) {
    const std::uint64_t bytes = random() >> (15 + random() % 49);
    const std::uint64_t back = parse_byte_count(format_byte_count(bytes)).value();
    const std::uint64_t difference = back > bytes ? back - bytes : bytes - back;
    EXPECT_LE(difference, bytes / 200 + 1) << bytes << " " << format_byte_count(bytes);
  }
}

TEST(RoundUp, GivesTheNextMultiple) {
  EXPECT_EQ(round_up(0, 16), 0U);
  EXPECT_EQ(round_up(1, 16), 16U);
  EXPECT_EQ(round_up(16, 16), 16U);
  EXPECT_EQ(round_up(17, 16), 32U);
}

}  // namespace
}  // namespace headrace
