// Calibration: which heads a precision map makes fine, from what each of them loses when it is
// coarse. Decides only; calibrate.cc measures.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "codec/precision_map.h"

namespace headrace {

/// Mean KL that a text gains when K or V of one head keeps 4 bits and everything else every bit.
struct HeadLoss {
  double key = 0;
  double value = 0;
};

/// One step from a map in which everything has 4 bits to one in which nothing is quantised.
struct Refinement {
  std::size_t head = 0;  ///< [layer][kv head]
  bool is_key = false;
  Precision to = Precision::raw;
};

/// All of them, those first that save the most KL per bit. Of q4 to q8 that is nearly the loss; of
/// q8 to raw what is left of it, as the squared width of a step.
std::vector<Refinement> order_refinements(std::span<const HeadLoss> losses);

/// The map after the first `count` of them, where `coarsest` names model and geometry.
PrecisionMap refine(const PrecisionMap& coarsest, std::span<const Refinement> refinements,
                    std::size_t count);

/// How many of them a map of at most so many bits a value has.
std::size_t refinements_within(double bits, const PrecisionMap& coarsest,
                               std::span<const Refinement> refinements);

}  // namespace headrace
