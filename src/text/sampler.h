// Sampler: chooses the next token from logits with llama.cpp's sampler chain. With temperature 0,
// and with top-k 1, it is the smallest token id among those with the greatest logit (after the
// repeat penalty).
#pragma once

#include <memory>
#include <span>

#include "headrace/options.h"
#include "headrace/result.h"
#include "text/vocabulary.h"

namespace headrace {

class Sampler {
 public:
  /// Errors: invalid_argument, naming the field that is out of range and the range.
  static Result<std::unique_ptr<Sampler>> create(const Vocabulary& vocabulary,
                                                 const SamplingOptions& options);
  ~Sampler();
  Sampler(const Sampler&) = delete;
  Sampler& operator=(const Sampler&) = delete;

  /// The next token for `logits` [vocabulary]. Does not accept it.
  TokenId sample(std::span<const float> logits);
  /// Tells the penalties about a token that is now part of the text (prompt tokens too).
  void accept(TokenId token);

 private:
  struct State;
  explicit Sampler(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace headrace
