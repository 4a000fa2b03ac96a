#include "codec/channel_streams.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "codec/rans.h"
#include "kernel/kernels.h"

namespace headrace {
namespace {

using kernel::rans_lanes;

/// The channels of one table, one after the other, filled up with zeros to whole rounds.
std::size_t stream_symbols(const ChannelPlan& plan, std::uint32_t table) {
  const auto count = static_cast<std::size_t>(std::ranges::count(plan.table_of, table));
  return round_up(count * plan.tokens, rans_lanes);
}

}  // namespace

std::size_t write_channels(const ChannelPlan& plan, std::span<const std::uint8_t> symbols,
                           MutableBytes out) {
  std::size_t at = 0;
  std::vector<RansSteps> steps;
  std::vector<std::vector<std::uint8_t>> streams;
  for (std::uint32_t table = 0; table < plan.tables; ++table) {
    std::vector<std::uint8_t> stream;
    stream.reserve(stream_symbols(plan, table));
    for (std::size_t i = 0; i < plan.table_of.size(); ++i) {
      if (plan.table_of[i] != table) continue;
      const auto row = symbols.subspan(i * plan.tokens, plan.tokens);
      stream.insert(stream.end(), row.begin(), row.end());
    }
    if (stream.empty()) continue;
    stream.resize(stream_symbols(plan, table));
    Histogram histogram;
    histogram.add(stream);
    const RansTable frequencies = RansTable::from_counts(histogram.counts());
    if (out.size() - at < frequencies.bytes()) return 0;
    frequencies.write(out.subspan(at));
    at += frequencies.bytes();
    steps.emplace_back(frequencies);
    streams.push_back(std::move(stream));
  }
  constexpr std::size_t states_bytes = rans_lanes * sizeof(std::uint32_t);
  if (out.size() - at < states_bytes) return 0;
  RansWriter writer(out.subspan(at + states_bytes));
  for (std::size_t i = streams.size(); i > 0; --i) {
    if (!writer.prepend(steps[i - 1], streams[i - 1])) return 0;
  }
  std::memcpy(&out[at], writer.states().data(), states_bytes);
  at += states_bytes;
  const Bytes words = writer.words();
  std::memmove(out.data() + at, words.data(), words.size());
  return at + words.size();
}

bool read_channels(const ChannelPlan& plan, Bytes encoded, std::span<std::uint8_t> symbols) {
  std::vector<RansTable> tables(plan.tables);
  for (std::uint32_t table = 0; table < plan.tables; ++table) {
    if (stream_symbols(plan, table) == 0) continue;
    auto read = RansTable::read(encoded);
    if (!read.ok()) return false;
    tables[table] = *read;
  }
  kernel::RansReader reader;
  if (encoded.size() < sizeof reader.states) return false;
  std::memcpy(reader.states, encoded.data(), sizeof reader.states);
  reader.next = encoded.data() + sizeof reader.states;
  reader.end = encoded.data() + encoded.size();

  std::array<std::uint32_t, kernel::rans_slots> slots;
  std::vector<std::uint8_t> stream;
  for (std::uint32_t table = 0; table < plan.tables; ++table) {
    stream.resize(stream_symbols(plan, table));
    if (stream.empty()) continue;
    tables[table].fill_slots(slots);
    if (!kernel::kernels().rans_decode(reader, slots.data(), stream.size(), stream.data())) {
      return false;
    }
    const std::uint8_t* next = stream.data();
    for (std::size_t i = 0; i < plan.table_of.size(); ++i) {
      if (plan.table_of[i] != table) continue;
      std::memcpy(&symbols[i * plan.tokens], next, plan.tokens);
      next += plan.tokens;
    }
  }
  const auto is_start = [](std::uint32_t state) { return state == kernel::rans_state_min; };
  return reader.next == reader.end && std::ranges::all_of(reader.states, is_start);
}

}  // namespace headrace
