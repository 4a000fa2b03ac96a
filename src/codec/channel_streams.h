// Entropy coding of rows of symbols, called channels, that share a few tables: the end of what the
// delta codecs store. Format: docs/formats/codecs.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/bytes.h"

namespace headrace {

/// Symbols lie [channel][tokens]; `table_of` says for each channel which of `tables` tables it has.
struct ChannelPlan {
  std::span<const std::uint8_t> table_of;
  std::uint32_t tables = 0;
  std::size_t tokens = 0;
};

/// Writes tables, states and words to the front of `out` and returns their bytes. 0: no room.
std::size_t write_channels(const ChannelPlan& plan, std::span<const std::uint8_t> symbols,
                           MutableBytes out);

/// The way back, of all of `encoded`. False: no encoder wrote this, and the symbols mean nothing.
bool read_channels(const ChannelPlan& plan, Bytes encoded, std::span<std::uint8_t> symbols);

}  // namespace headrace
