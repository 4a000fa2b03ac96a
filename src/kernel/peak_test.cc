// The loops that measure a machine: that they count what they do. How fast they are is no test.
#include "kernel/kernel_test.h"

namespace headrace::kernel {
namespace {

TEST(Peak, CountsAMultiplicationAndAnAdditionForEachPairOfBytes) {
  for (const KernelTable* table : tables_here()) {
    const std::uint64_t once = table->int8_peak(1);
    EXPECT_GT(once, 0U) << table->name;
    EXPECT_EQ(once % (lanes * 4 * 2), 0U) << table->name;
    EXPECT_EQ(table->int8_peak(1000), 1000 * once) << table->name;
    EXPECT_EQ(table->int8_peak(0), 0U) << table->name;
  }
}

TEST(Peak, IsZeroWithoutInstructionsForBf16) {
  for (const KernelTable* table : tables_here()) {
    const std::uint64_t once = table->bf16_peak(1);
    EXPECT_EQ(once > 0, std::string(table->name) == "avx512bf16") << table->name;
    EXPECT_EQ(table->bf16_peak(1000), 1000 * once) << table->name;
  }
}

TEST(Peak, ReadsEveryValueOfABuffer) {
  std::vector<float> values(4096, 1.0F);
  for (const KernelTable* table : tables_here()) {
    EXPECT_EQ(table->sum_floats(values.data(), values.size()), 4096.0F) << table->name;
    for (std::size_t i = 0; i < values.size(); i += 97) {
      values[i] = 3.0F;
      EXPECT_EQ(table->sum_floats(values.data(), values.size()), 4098.0F) << table->name << i;
      values[i] = 1.0F;
    }
  }
}

}  // namespace
}  // namespace headrace::kernel
