#include "codec/rans.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "base/check.h"

namespace headrace {

using kernel::rans_bits;
using kernel::rans_lanes;
using kernel::rans_slots;
using kernel::rans_state_min;

namespace {

/// Smaller frequencies take one byte in a table.
constexpr std::uint32_t two_bytes_from = 128;

}  // namespace

void Histogram::add(std::span<const std::uint8_t> symbols) {
  for (std::size_t i = 0; i < symbols.size(); i += 4) {
    for (std::size_t j = 0; j < 4; ++j) ++counts_[j][symbols[i + j]];
  }
}

std::array<std::uint32_t, rans_symbols> Histogram::counts() const {
  std::array<std::uint32_t, rans_symbols> sums = {};
  for (const auto& part : counts_) {
    for (std::size_t i = 0; i < rans_symbols; ++i) sums[i] += part[i];
  }
  return sums;
}

RansTable RansTable::from_counts(const std::array<std::uint32_t, rans_symbols>& counts) {
  std::array<std::uint32_t, rans_symbols> padded = counts;
  // With one symbol alone its frequency would not fit 12 bits.
  if (std::ranges::count_if(padded, [](std::uint32_t count) { return count > 0; }) == 1) {
    padded[padded[0] > 0 ? 1 : 0] = 1;
  }
  const std::uint64_t total = std::accumulate(padded.begin(), padded.end(), std::uint64_t{0});
  HEADRACE_CHECK(total > 0, "a stream has symbols");
  RansTable table;
  std::uint32_t sum = 0;
  for (std::size_t i = 0; i < rans_symbols; ++i) {
    if (padded[i] == 0) continue;
    const std::uint64_t share = padded[i] * std::uint64_t{rans_slots} / total;
    table.frequencies_[i] = static_cast<std::uint16_t>(std::max<std::uint64_t>(share, 1));
    sum += table.frequencies_[i];
  }
  // What rounding left over, or took too much, falls to the greatest: it minds least.
  while (sum != rans_slots) {
    auto& greatest = *std::ranges::max_element(table.frequencies_);
    const std::uint32_t step =
        sum < rans_slots ? rans_slots - sum
                         : std::min(sum - rans_slots, std::max<std::uint32_t>(greatest / 8U, 1));
    greatest = static_cast<std::uint16_t>(sum < rans_slots ? greatest + step : greatest - step);
    sum = sum < rans_slots ? sum + step : sum - step;
  }
  return table;
}

Result<RansTable> RansTable::read(Bytes& in) {
  const auto damaged = [] { return Error{ErrorCode::corrupt, "a damaged table of frequencies"}; };
  constexpr std::size_t map_bytes = rans_symbols / 8;
  if (in.size() < map_bytes) return damaged();
  RansTable table;
  std::uint32_t sum = 0;
  std::size_t at = map_bytes;
  for (std::size_t i = 0; i < rans_symbols; ++i) {
    if ((std::to_integer<unsigned>(in[i / 8]) >> (i % 8) & 1U) == 0) continue;
    if (at == in.size()) return damaged();
    auto frequency = std::to_integer<std::uint32_t>(in[at++]);
    if (frequency >= two_bytes_from) {
      if (at == in.size()) return damaged();
      frequency = (frequency - two_bytes_from) << 8 | std::to_integer<std::uint32_t>(in[at++]);
    }
    if (frequency == 0 || frequency >= rans_slots) return damaged();
    table.frequencies_[i] = static_cast<std::uint16_t>(frequency);
    sum += table.frequencies_[i];
  }
  if (sum != rans_slots) return damaged();
  in = in.subspan(at);
  return table;
}

std::size_t RansTable::bytes() const {
  std::size_t bytes = rans_symbols / 8;
  for (const std::uint16_t frequency : frequencies_) {
    if (frequency > 0) bytes += frequency < two_bytes_from ? 1 : 2;
  }
  return bytes;
}

void RansTable::write(MutableBytes out) const {
  std::size_t at = rans_symbols / 8;
  std::memset(out.data(), 0, at);
  for (std::size_t i = 0; i < rans_symbols; ++i) {
    if (frequencies_[i] == 0) continue;
    out[i / 8] |= std::byte{1} << (i % 8);
    if (frequencies_[i] >= two_bytes_from) {
      out[at++] = static_cast<std::byte>(two_bytes_from + (frequencies_[i] >> 8));
    }
    out[at++] = static_cast<std::byte>(frequencies_[i]);
  }
}

void RansTable::fill_slots(std::span<std::uint32_t, rans_slots> slots) const {
  std::uint32_t slot = 0;
  for (std::uint32_t symbol = 0; symbol < rans_symbols; ++symbol) {
    const std::uint32_t frequency = frequencies_[symbol];
    const std::uint32_t entry = frequency | symbol << 24;
    for (std::uint32_t i = 0; i < frequency; ++i) slots[slot++] = entry | i << rans_bits;
  }
}

RansSteps::RansSteps(const RansTable& table) {
  std::uint32_t start = 0;
  for (std::size_t i = 0; i < rans_symbols; ++i) {
    const std::uint32_t frequency = table.frequency(i);
    if (frequency == 0) continue;
    steps_[i] = {.reciprocal = ((std::uint64_t{1} << 44) + frequency - 1) / frequency,
                 .limit = frequency << 20,
                 .start = static_cast<std::uint16_t>(start),
                 .others = static_cast<std::uint16_t>(rans_slots - frequency)};
    start += frequency;
  }
}

RansWriter::RansWriter(MutableBytes room) : room_(room), position_(room.size()) {
  states_.fill(rans_state_min);
}

bool RansWriter::prepend(const RansSteps& steps, std::span<const std::uint8_t> symbols) {
  std::byte* at = room_.data() + position_;
  for (std::size_t end = symbols.size(); end > 0; end -= rans_lanes) {
    if (at - room_.data() < std::ptrdiff_t{2} * rans_lanes) return false;
    for (std::size_t lane = rans_lanes; lane > 0; --lane) {
      const RansSteps::Step& step = steps[symbols[end - rans_lanes + lane - 1]];
      std::uint32_t x = states_[lane - 1];
      // Written in any case, kept only if the state is too large: which one it is nobody can guess.
      const auto word = static_cast<std::uint16_t>(x);
      std::memcpy(at - 2, &word, 2);
      const bool gives = x >= step.limit;
      at -= gives ? 2 : 0;
      x >>= gives ? 16 : 0;
      // x / frequency: exact for x < frequency * 2^20.
      const std::uint64_t quotient = x * step.reciprocal >> 44;
      states_[lane - 1] = static_cast<std::uint32_t>(x + step.start + quotient * step.others);
    }
  }
  position_ = static_cast<std::size_t>(at - room_.data());
  return true;
}

}  // namespace headrace
