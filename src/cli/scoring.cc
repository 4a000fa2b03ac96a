#include "cli/scoring.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "base/check.h"

namespace headrace {

double log_sum_exp(std::span<const float> logits) {
  const double greatest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - greatest);
  return greatest + std::log(sum);
}

double log_probability(std::span<const float> logits, TokenId token) {
  HEADRACE_CHECK(token >= 0 && static_cast<std::size_t>(token) < logits.size(), "the token exists");
  return logits[static_cast<std::size_t>(token)] - log_sum_exp(logits);
}

double kl_divergence(std::span<const float> reference, std::span<const float> tested) {
  HEADRACE_CHECK(reference.size() == tested.size(), "both rows have the same vocabulary");
  const double reference_total = log_sum_exp(reference);
  const double tested_total = log_sum_exp(tested);
  double divergence = 0;
  for (std::size_t token = 0; token < reference.size(); ++token) {
    const double log_p = reference[token] - reference_total;
    const double p = std::exp(log_p);
    // A token that the reference rules out (-inf) adds nothing: p log p goes to 0.
    if (p > 0) divergence += p * (log_p - (tested[token] - tested_total));
  }
  return std::max(divergence, 0.0);  // it is never negative; rounding may be
}

TokenId likeliest(std::span<const float> logits) {
  return static_cast<TokenId>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

void Score::add(std::span<const float> logits, TokenId token) {
  negative_log_likelihood_ -= log_probability(logits, token);
  ++tokens_;
}

void Score::compare(std::span<const float> reference, std::span<const float> tested) {
  kl_ += kl_divergence(reference, tested);
  if (likeliest(reference) == likeliest(tested)) ++same_top1_;
  ++compared_;
}

double Score::perplexity() const {
  return std::exp(negative_log_likelihood_ / static_cast<double>(tokens_));
}
double Score::kl_mean() const { return kl_ / static_cast<double>(compared_); }
double Score::same_top1() const {
  return static_cast<double>(same_top1_) / static_cast<double>(compared_);
}

}  // namespace headrace
