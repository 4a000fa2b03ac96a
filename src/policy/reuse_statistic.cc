#include "policy/reuse_statistic.h"

#include <algorithm>

namespace headrace {
namespace {

constexpr double step_growth = 1.15;

// What is believed before anything was counted, and how many blocks that belief weighs. Blocks come
// and are used in runs of dozens, so a few hundred of them are a few independent cases.
constexpr double believed_chance = 0.02;
constexpr double belief_blocks = 1000;       // of the chance at an age, all classes together
constexpr double class_belief_blocks = 500;  // of a class, towards all of them

}  // namespace

const std::array<std::uint64_t, age_steps>& age_step_ends() {
  static const std::array<std::uint64_t, age_steps> ends = [] {
    std::array<std::uint64_t, age_steps> all = {};
    double end = 1;
    for (std::uint64_t& step_end : all) {
      step_end = static_cast<std::uint64_t>(end);
      end = std::max(end + 1, end * step_growth);
    }
    return all;
  }();
  return ends;
}

ReuseStatistic::ReuseStatistic(double weight) : weight_(weight) { learn(); }

void ReuseStatistic::learn() {
  std::array<double, age_steps> chances = {};  // of all classes but tails
  for (std::size_t step = 0; step < age_steps; ++step) {
    double uses = belief_blocks * believed_chance;
    double blocks = belief_blocks;
    for (std::size_t reuse_class = 0; reuse_class < tail_class; ++reuse_class) {
      const Cell& cell = cells_[reuse_class][step];
      uses += cell.uses;
      blocks += cell.uses + cell.survivals;
    }
    chances[step] = uses / blocks;
  }
  const auto& ends = age_step_ends();
  for (std::size_t reuse_class = 0; reuse_class < reuse_classes; ++reuse_class) {
    for (std::size_t from = 0; from < age_steps; ++from) {
      double alive = 1;
      double used = 0;
      double requests = 0;
      double best = 0;
      // Nothing is known of the last step, which has no end: blocks in it are worth nothing.
      for (std::size_t step = from; step + 1 < age_steps; ++step) {
        const Cell& cell = cells_[reuse_class][step];
        const double chance = (cell.uses + class_belief_blocks * chances[step]) /
                              (cell.uses + cell.survivals + class_belief_blocks);
        const double length = static_cast<double>(ends[step] - (step == 0 ? 0 : ends[step - 1]));
        used += alive * chance;
        // A use comes in the middle of a step, on average.
        requests += alive * length * (1 - chance / 2);
        alive *= 1 - chance;
        best = std::max(best, used / requests);
      }
      densities_[reuse_class][from] = best;
    }
  }
}

}  // namespace headrace
