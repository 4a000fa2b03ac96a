// LogitComparison: how far apart two runs' logits are, position by position.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace headrace::test {

class LogitComparison {
 public:
  /// Adds one position: the reference's logits and those under test, both [vocabulary].
  void add(std::span<const float> reference, std::span<const float> logits);

  std::uint64_t positions() const { return positions_; }
  double mean_kl() const;  ///< nats, of the distribution under test from the reference's
  double max_kl() const { return max_kl_; }
  double same_top1() const;                                  ///< share of positions, 0 to 1
  double max_difference() const { return max_difference_; }  ///< of one logit
  /// Largest lead that the reference's favourite had over ours where they differ: small means a
  /// near tie.
  double max_lost_lead() const { return max_lost_lead_; }
  bool all_finite() const { return all_finite_; }

  /// "2000 positions: mean KL 1.2e-05, max KL 0.003, same top-1 99.8 %, ..."
  std::string summary() const;

 private:
  std::uint64_t positions_ = 0;
  std::uint64_t same_top1_ = 0;
  double kl_sum_ = 0;
  double max_kl_ = 0;
  double max_difference_ = 0;
  double max_lost_lead_ = 0;
  bool all_finite_ = true;
};

/// Index of the greatest value, the smallest index among equals.
std::size_t argmax(std::span<const float> values);

}  // namespace headrace::test
