#include "tests/support/compare.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace headrace::test {
namespace {

/// log(sum(exp(values))), in double.
double log_sum_exp(std::span<const float> values, double greatest) {
  double sum = 0;
  for (const float value : values) sum += std::exp(static_cast<double>(value) - greatest);
  return greatest + std::log(sum);
}

}  // namespace

std::size_t argmax(std::span<const float> values) {
  return static_cast<std::size_t>(std::max_element(values.begin(), values.end()) - values.begin());
}

void LogitComparison::add(std::span<const float> reference, std::span<const float> logits) {
  const std::size_t reference_top = argmax(reference);
  const std::size_t top = argmax(logits);
  const double reference_norm =
      log_sum_exp(reference, static_cast<double>(reference[reference_top]));
  const double norm = log_sum_exp(logits, static_cast<double>(logits[top]));
  double kl = 0;
  for (std::size_t token = 0; token < reference.size(); ++token) {
    const double reference_log = static_cast<double>(reference[token]) - reference_norm;
    const double log = static_cast<double>(logits[token]) - norm;
    kl += std::exp(reference_log) * (reference_log - log);
    const double difference =
        std::abs(static_cast<double>(reference[token]) - static_cast<double>(logits[token]));
    max_difference_ = std::max(max_difference_, difference);
    all_finite_ = all_finite_ && std::isfinite(logits[token]);
  }
  ++positions_;
  kl_sum_ += kl;
  max_kl_ = std::max(max_kl_, kl);
  if (top == reference_top) {
    ++same_top1_;
  } else {
    const double lead =
        static_cast<double>(reference[reference_top]) - static_cast<double>(reference[top]);
    max_lost_lead_ = std::max(max_lost_lead_, lead);
  }
}

double LogitComparison::mean_kl() const {
  return positions_ == 0 ? 0 : kl_sum_ / static_cast<double>(positions_);
}

double LogitComparison::same_top1() const {
  return positions_ == 0 ? 0 : static_cast<double>(same_top1_) / static_cast<double>(positions_);
}

std::string LogitComparison::summary() const {
  char line[256];
  std::snprintf(
      line, sizeof line,
      "%llu positions: mean KL %.3g, max KL %.3g, same top-1 %.2f %%, max difference %.3g, "
      "max lost lead %.3g",
      static_cast<unsigned long long>(positions_), mean_kl(), max_kl_, same_top1() * 100,
      max_difference_, max_lost_lead_);
  return line;
}

}  // namespace headrace::test
