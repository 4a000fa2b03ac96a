// The real model that tests use: a GGUF file of SmolLM2-135M-Instruct, named by
// HEADRACE_TEST_MODEL. ctest sets it.
#pragma once

#include <gtest/gtest.h>

#include <span>
#include <string>

#include "text/vocabulary.h"

namespace headrace {

/// A test with the vocabulary of the real model, loaded once; skipped where there is none.
class TestWithModel : public testing::Test {
 protected:
  void SetUp() override;

  std::string text_of(std::span<const TokenId> tokens) const;

  std::string model_path;
  const Vocabulary* vocabulary = nullptr;
};

}  // namespace headrace
