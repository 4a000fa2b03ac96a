// Entropy coding of bytes: rANS with one static table per stream, 12-bit frequencies, 32 states of
// 32 bits that take turns, and 16-bit words. Format: docs/formats/codecs.md. Decoding is a kernel
// (kernel/rans-inl.h).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "base/bytes.h"
#include "headrace/result.h"
#include "kernel/kernels.h"

namespace headrace {

inline constexpr std::size_t rans_symbols = 256;

/// How often each symbol occurs.
class Histogram {
 public:
  /// `symbols.size()` is a multiple of 4.
  void add(std::span<const std::uint8_t> symbols);
  std::array<std::uint32_t, rans_symbols> counts() const;

 private:
  // Four, so that equal neighbours do not wait for each other.
  std::array<std::array<std::uint32_t, rans_symbols>, 4> counts_ = {};
};

/// Frequencies of the symbols of one stream. At least two of them are not 0 and they sum to 4096.
class RansTable {
 public:
  /// The nearest frequencies to `counts`, of which one at least is not 0.
  static RansTable from_counts(const std::array<std::uint32_t, rans_symbols>& counts);
  /// Reads a table from the front of `in` and moves it behind. Errors: corrupt.
  static Result<RansTable> read(Bytes& in);
  /// Most bytes of a table.
  static constexpr std::size_t bytes_max = rans_symbols / 8 + 2 * rans_symbols;

  std::size_t bytes() const;
  /// Writes the table to the front of `out`.
  void write(MutableBytes out) const;

  std::uint32_t frequency(std::size_t symbol) const { return frequencies_[symbol]; }
  /// What the decoding kernel reads.
  void fill_slots(std::span<std::uint32_t, kernel::rans_slots> slots) const;

 private:
  std::array<std::uint16_t, rans_symbols> frequencies_ = {};
};

/// Encodes a stream from its end to its beginning, as rANS does.
class RansWriter {
 public:
  /// Words are written from the end of `room` downwards.
  RansWriter(const RansTable& table, MutableBytes room);
  /// Puts `symbols` (a multiple of rans_lanes) before those of the calls before. False: no room.
  bool prepend(std::span<const std::uint8_t> symbols);
  /// The words so far.
  Bytes words() const { return room_.subspan(position_); }
  std::span<const std::uint32_t, kernel::rans_lanes> states() const { return states_; }

 private:
  struct Step {
    std::uint64_t reciprocal = 0;  ///< 2^44 / frequency, rounded up
    std::uint32_t limit = 0;       ///< states from this on give a word first
    std::uint16_t start = 0;       ///< first slot
    std::uint16_t others = 0;      ///< 4096 - frequency
  };
  std::array<Step, rans_symbols> steps_ = {};
  std::array<std::uint32_t, kernel::rans_lanes> states_;
  MutableBytes room_;
  std::size_t position_;
};

}  // namespace headrace
