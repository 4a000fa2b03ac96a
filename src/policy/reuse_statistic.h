// ReuseStatistic: how long blocks wait for their next use, learned from those that are watched.
//
// Blocks of one class (how often they were used) are alike. Their age, the requests since the last
// use, is cut into steps that grow by 15 %. For each class and step it counts the blocks that
// lived through the step unused and those that were used in it, which gives the chance of a use in
// the step (the estimate of Kaplan and Meier: blocks that stop being watched do not bias it).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace headrace {

/// Uses of a block: once, twice, more; and blocks that are not full.
constexpr std::size_t reuse_classes = 4;
constexpr std::size_t tail_class = reuse_classes - 1;
/// Steps of age. The last one, from 53,000 requests on, has no end.
constexpr std::size_t age_steps = 72;

/// The age at which a step ends, in requests.
const std::array<std::uint64_t, age_steps>& age_step_ends();

class ReuseStatistic {
 public:
  /// Each count stands for `weight` blocks: more than one where only a sample is watched.
  explicit ReuseStatistic(double weight);

  void count_use(std::size_t reuse_class, std::size_t step) {
    cells_[reuse_class][step].uses += weight_;
  }
  void count_survival(std::size_t reuse_class, std::size_t step) {
    cells_[reuse_class][step].survivals += weight_;
  }

  /// Works the densities out anew from what was counted.
  void learn();

  /// Uses that a block of that class and age is worth per request that it stays, if it stays for
  /// the time that is best for it: the largest of P(used within w) / E[time until the use or w].
  double density(std::size_t reuse_class, std::size_t step) const {
    return densities_[reuse_class][step];
  }

 private:
  struct Cell {
    double uses = 0;
    double survivals = 0;
  };

  const double weight_;
  std::array<std::array<Cell, age_steps>, reuse_classes> cells_ = {};
  std::array<std::array<double, age_steps>, reuse_classes> densities_ = {};
};

}  // namespace headrace
