#include "cli/calibration.h"

#include <algorithm>

namespace headrace {
namespace {

// 8 bits have 127 steps up to the largest magnitude and 4 bits 7.5; losses go by their squares.
constexpr double loss_of_8_bits = (7.5 * 7.5) / (127.0 * 127.0);

double saved_per_bit(double loss, Precision to) {
  if (to == Precision::q8) {
    return loss * (1 - loss_of_8_bits) / (bits_of(Precision::q8) - bits_of(Precision::q4));
  }
  return loss * loss_of_8_bits / (bits_of(Precision::raw) - bits_of(Precision::q8));
}

}  // namespace

std::vector<Refinement> order_refinements(std::span<const HeadLoss> losses) {
  struct Candidate {
    Refinement refinement;
    double saved_per_bit;
  };
  std::vector<Candidate> candidates;
  for (const Precision to : {Precision::q8, Precision::raw}) {
    for (std::size_t head = 0; head < losses.size(); ++head) {
      candidates.push_back({{head, true, to}, saved_per_bit(losses[head].key, to)});
      candidates.push_back({{head, false, to}, saved_per_bit(losses[head].value, to)});
    }
  }
  // Stable: of equal ones those to 8 bits come first, so a part has 8 bits before it is raw.
  std::ranges::stable_sort(candidates, std::ranges::greater(), &Candidate::saved_per_bit);
  std::vector<Refinement> refinements;
  refinements.reserve(candidates.size());
  for (const Candidate& candidate : candidates) refinements.push_back(candidate.refinement);
  return refinements;
}

PrecisionMap refine(const PrecisionMap& coarsest, std::span<const Refinement> refinements,
                    std::size_t count) {
  PrecisionMap map = coarsest;
  std::ranges::fill(map.heads, HeadPrecision{Precision::q4, Precision::q4});
  for (const Refinement& refinement : refinements.first(count)) {
    HeadPrecision& head = map.heads[refinement.head];
    (refinement.is_key ? head.key : head.value) = refinement.to;
  }
  return map;
}

std::size_t refinements_within(double bits, const PrecisionMap& coarsest,
                               std::span<const Refinement> refinements) {
  constexpr double rounding = 1e-9;  // a limit of 8.5 is met by q8 everywhere
  std::size_t count = 0;
  while (count < refinements.size() &&
         refine(coarsest, refinements, count + 1).mean_bits() <= bits + rounding) {
    ++count;
  }
  return count;
}

}  // namespace headrace
