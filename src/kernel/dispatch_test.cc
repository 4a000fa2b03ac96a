// Which kernels run. The choice is made once per process, so each test makes it in a child.
#include <csignal>
#include <cstdlib>

#include "kernel/kernel_test.h"

namespace headrace::kernel {
namespace {

class DispatchDeathTest : public testing::Test {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

[[noreturn]] void exit_if_chosen(const char* forced, const char* expected) {
  if (forced != nullptr) ::setenv("HEADRACE_FORCE_ISA", forced, 1);
  if (forced == nullptr) ::unsetenv("HEADRACE_FORCE_ISA");
  std::fprintf(stderr, "chosen: %s\n", kernels().name);
  std::exit(std::string(kernels().name) == expected ? 0 : 1);
}

TEST_F(DispatchDeathTest, ForcedKernelsRun) {
  for (const KernelTable* table : tables_here()) {
    EXPECT_EXIT(exit_if_chosen(table->name, table->name), testing::ExitedWithCode(0), table->name);
  }
}

TEST_F(DispatchDeathTest, TheBestKernelsRunUnlessOthersAreForced) {
  const char* const best = tables_here().front()->name;
  EXPECT_EXIT(exit_if_chosen(nullptr, best), testing::ExitedWithCode(0), best);
  EXPECT_EXIT(exit_if_chosen("", best), testing::ExitedWithCode(0), best);
}

TEST_F(DispatchDeathTest, AnUnknownNameEndsTheProcessAndSaysWhichThereAre) {
  for (const char* name : {"avx9000", "AVX2", "scalar "}) {
    EXPECT_EXIT(exit_if_chosen(name, name), testing::KilledBySignal(SIGABRT),
                "HEADRACE_FORCE_ISA.*scalar, avx2, avx512 or avx512bf16");
  }
}

TEST(Dispatch, ScalarKernelsRunEverywhere) {
  ASSERT_NE(find_kernels("scalar"), nullptr);
  EXPECT_STREQ(find_kernels("scalar")->name, "scalar");
}

TEST(Dispatch, NoTableHasAnUnknownName) {
  EXPECT_EQ(find_kernels(""), nullptr);
  EXPECT_EQ(find_kernels("neon"), nullptr);
}

TEST(Dispatch, EveryTableIsComplete) {
  for (const KernelTable* table : tables_here()) {
    SCOPED_TRACE(table->name);
    EXPECT_NE(table->rms_norm, nullptr);
    EXPECT_NE(table->swiglu, nullptr);
    EXPECT_NE(table->add, nullptr);
    EXPECT_NE(table->quantize_row, nullptr);
    EXPECT_NE(table->rope_pairs, nullptr);
    EXPECT_NE(table->unpack_panel, nullptr);
    EXPECT_NE(table->integer_panel_product, nullptr);
    EXPECT_NE(table->integer_few_rows_product, nullptr);
    EXPECT_NE(table->float_panel_product, nullptr);
    EXPECT_NE(table->store_kv, nullptr);
    EXPECT_NE(table->fold_page, nullptr);
    EXPECT_NE(table->fold_merge, nullptr);
    EXPECT_NE(table->fold_finish, nullptr);
  }
}

}  // namespace
}  // namespace headrace::kernel
