// Scoring: what logits say about a text, and how far two models' opinions are apart. Sums in
// double.
#pragma once

#include <cstdint>
#include <span>

#include "headrace/types.h"

namespace headrace {

/// log(sum(exp(logits))), without overflow.
double log_sum_exp(std::span<const float> logits);

/// Natural log of the probability that `logits` give to `token`.
double log_probability(std::span<const float> logits, TokenId token);

/// Kullback-Leibler divergence KL(reference || tested) in nats: how much is lost by believing
/// `tested`.
double kl_divergence(std::span<const float> reference, std::span<const float> tested);

/// The token with the greatest logit; of several, the smallest id.
TokenId likeliest(std::span<const float> logits);

/// Sums over the scored positions of a text.
class Score {
 public:
  /// A position where `token` came next.
  void add(std::span<const float> logits, TokenId token);
  /// The same position as the reference sees it.
  void compare(std::span<const float> reference, std::span<const float> tested);

  std::uint64_t tokens() const { return tokens_; }
  double perplexity() const;
  bool compared() const { return compared_ > 0; }
  double kl_mean() const;
  double same_top1() const;  ///< fraction of the compared positions

 private:
  std::uint64_t tokens_ = 0;
  double negative_log_likelihood_ = 0;
  std::uint64_t compared_ = 0;
  std::uint64_t same_top1_ = 0;
  double kl_ = 0;
};

}  // namespace headrace
