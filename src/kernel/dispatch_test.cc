// Which kernels run. The choice is made once per process, so each test makes it in a child.
#include <csignal>
#include <cstdlib>

#include "kernel/kernel_test.h"

namespace headrace::kernel {
namespace {

class DispatchDeathTest : public testing::Test {
 protected:
  void SetUp() override { use_new_process(); }
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

TEST_F(DispatchDeathTest, ForcingKernelsWithoutCheckingThemIsABug) {
  EXPECT_EXIT(exit_if_chosen("avx9000", ""), testing::KilledBySignal(SIGABRT),
              "HEADRACE_FORCE_ISA was not checked");
}

TEST(Dispatch, AForcedNameIsCheckedAndTheErrorSaysWhichThereAre) {
  const char* before = std::getenv("HEADRACE_FORCE_ISA");
  const std::string kept = before == nullptr ? "" : before;
  for (const char* name : {"avx9000", "AVX2", "scalar "}) {
    ::setenv("HEADRACE_FORCE_ISA", name, 1);
    const Result<void> checked = check_forced_kernels();
    ASSERT_FALSE(checked.ok()) << name;
    EXPECT_EQ(checked.error().code, ErrorCode::invalid_argument);
    EXPECT_NE(checked.error().message.find(std::string("'") + name + "'"), std::string::npos);
    for (const KernelTable* table : tables_here()) {
      EXPECT_NE(checked.error().message.find(table->name), std::string::npos);
    }
  }
  for (const char* name : {"scalar", tables_here().front()->name, ""}) {
    ::setenv("HEADRACE_FORCE_ISA", name, 1);
    EXPECT_TRUE(check_forced_kernels().ok()) << name;
  }
  ::setenv("HEADRACE_FORCE_ISA", kept.c_str(), 1);
}

TEST(Dispatch, ScalarKernelsRunEverywhere) {
  ASSERT_NE(find_kernels("scalar"), nullptr);
  EXPECT_STREQ(find_kernels("scalar")->name, "scalar");
}

TEST(Dispatch, NoTableHasAnUnknownName) {
  EXPECT_EQ(find_kernels(""), nullptr);
  EXPECT_EQ(find_kernels("avx9000"), nullptr);
}

TEST(Dispatch, ATableRunsOnItsOwnProcessorOnly) {
#if defined(__aarch64__)
  EXPECT_NE(find_kernels("neon"), nullptr);  // part of the architecture
  EXPECT_EQ(find_kernels("avx2"), nullptr);
#elif defined(__x86_64__)
  EXPECT_EQ(find_kernels("neon"), nullptr);
#endif
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
    EXPECT_NE(table->unpack_float_panel, nullptr);
    EXPECT_NE(table->float_few_rows_product, nullptr);
    EXPECT_NE(table->float_panel_product, nullptr);
    EXPECT_NE(table->store_kv, nullptr);
    EXPECT_NE(table->fold_page, nullptr);
    EXPECT_NE(table->fold_merge, nullptr);
    EXPECT_NE(table->fold_finish, nullptr);
    EXPECT_NE(table->int8_peak, nullptr);
    EXPECT_NE(table->bf16_peak, nullptr);
    EXPECT_NE(table->sum_floats, nullptr);
  }
}

}  // namespace
}  // namespace headrace::kernel
