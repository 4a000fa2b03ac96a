#include "runtime/model_file.h"

#include <gtest/gtest.h>

#include <string>

#include "base/serial_parallel.h"
#include "runtime/runtime_test_engine.h"

namespace headrace {
namespace {

class ModelFileTest : public TinyEngineTest {
 protected:
  static Digest128 digest_of(Env& env, const std::string& path) {
    SerialParallel parallel;
    const auto file = ModelFile::open(env, path);
    EXPECT_TRUE(file.ok()) << file.error().message;
    return (*file)->digest(parallel);
  }
};

TEST_F(ModelFileTest, DescribesTheModel) {
  const auto file = ModelFile::open(posix_env(), model_path());
  ASSERT_TRUE(file.ok()) << file.error().message;
  EXPECT_EQ((*file)->info().layers, layers);
  EXPECT_EQ((*file)->info().trained_context, 1024U);
  EXPECT_EQ((*file)->info().architecture, "llama");
}

TEST_F(ModelFileTest, TheDigestDoesNotDependOnTheNumberOfThreads) {
  const auto file = ModelFile::open(posix_env(), model_path()).value();
  const auto three = posix_env().new_parallel(3);
  EXPECT_EQ(file->digest(*three), digest_of(posix_env(), model_path()));
}

TEST_F(ModelFileTest, TheDigestChangesWithABitOfTheWeights) {
  std::string bytes = test::read_bytes(model_path());
  const Digest128 before = digest_of(posix_env(), model_path());
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  const test::TemporaryDirectory other;
  test::write_bytes(other.path_of("other.gguf"), bytes);
  EXPECT_NE(digest_of(posix_env(), other.path_of("other.gguf")), before);
}

TEST_F(ModelFileTest, AFileThatIsMissingIsNotFound) {
  const auto file = ModelFile::open(posix_env(), model_path() + ".missing");
  ASSERT_FALSE(file.ok());
  expect_helpful(file.error(), ErrorCode::not_found, "tiny.gguf.missing");
}

}  // namespace
}  // namespace headrace
