// For those who do one thing after the other with a tier and nothing else meanwhile.
#pragma once

#include <array>

#include "tier/tier.h"

namespace headrace {

/// The outcome of the only submission in flight.
inline Result<void> finish(Tier& tier, const Result<TierTicket>& ticket) {
  if (!ticket.ok()) return ticket.error();
  std::array<TierCompletion, 1> completion;
  while (tier.poll(completion) == 0) tier.wait();
  return completion[0].result;
}

}  // namespace headrace
