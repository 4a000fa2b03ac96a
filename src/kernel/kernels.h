// The table of kernels: one text per kernel (the *-inl.h files of this folder), compiled once per
// instruction set (isa_*.cc), chosen once (dispatch.cc). HEADRACE_FORCE_ISA=<name> forces one:
// avx512bf16, avx512, avx2, neon_dotprod, neon or scalar.
//
// Row invariance (invariant 2): every kernel computes a row's result by an order of operations that
// depends on that row alone. The one-row and the many-row kernels of a weight format share one
// numeric definition, so they give the same bits.
//
// Adding a kernel: declare its pointer here, write it in a *-inl.h, fill it in table-inl.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "headrace/result.h"
#include "headrace/types.h"

namespace headrace::kernel {

/// Lanes of every kernel vector, whatever the machine's registers are; also the tokens of a tile.
inline constexpr std::uint32_t lanes = 16;
/// Values that share one activation scale, and the block size of the integer weight formats.
inline constexpr std::uint32_t quant_block = 32;
/// Output columns of a weight panel.
inline constexpr std::uint32_t panel_columns = 48;

/// How a weight matrix is multiplied. The block formats are those of ggml; `other` is anything else
/// that ggml can turn into f32.
///   integer formats: activations are quantised per 32 values to 8 bits, dot products of a block
///   are exact integers, and blocks are added in order:  c = fma(dot, d_weight * d_activation, c)
///   (once per half block for q6_k, which has a scale per 16 weights), then, where the format has a
///   minimum, c = fma(minimum, d_activation * sum_activation, c);
///   the others: c = fma(a[k], w[k], c) over k in order, in f32; f16 and bf16 widen without loss.
enum class WeightFormat : std::uint8_t {
  q4_0,
  q4_1,
  q5_0,
  q5_1,
  q8_0,
  iq4_nl,
  q4_k,
  q5_k,
  q6_k,
  f32,
  f16,
  bf16,
  other
};

constexpr bool is_integer(WeightFormat format) { return format < WeightFormat::f32; }

/// Activation rows, quantised per 32 values: value = scale * int8.
struct QuantizedRows {
  std::int8_t* values = nullptr;  ///< [row][width]
  float* scales = nullptr;        ///< [row][width / 32]
  float* scaled_sums = nullptr;   ///< [row][width / 32]: scale * sum of the int8 values
  std::int32_t* sums = nullptr;   ///< [row][width / 16]: sums of the int8 values of half blocks
  std::uint32_t width = 0;

  QuantizedRows from_row(std::size_t row) const {
    const std::size_t blocks = width / quant_block;
    return {values + row * width, scales + row * blocks, scaled_sums + row * blocks,
            sums + row * blocks * 2, width};
  }
};

/// Weights of one matrix in the file's layout: output o is the row of `width` values at data + o *
/// row_bytes.
struct WeightRows {
  WeightFormat format = WeightFormat::other;
  const std::byte* data = nullptr;
  std::size_t row_bytes = 0;
  std::uint32_t width = 0;
};

/// Up to panel_columns columns of integer weights, unpacked for the many-row kernel:
/// weights [block][4 values][group of 16 columns][column][value] as unsigned bytes; scales
/// [block][scale of the block][group][column]; minimums [block][group][column].
struct IntegerPanel {
  std::uint8_t* weights = nullptr;
  float* scales = nullptr;
  float* minimums = nullptr;
};

/// Where a matrix product goes: out[row * stride + column].
struct OutputRows {
  float* data = nullptr;
  std::size_t stride = 0;
  bool accumulate = false;  ///< add the finished product to what is there (a residual connection)
};

/// K and V of one kv head in one page, in the layout of page/shape.h.
struct PageHead {
  std::byte* k = nullptr;
  std::byte* v = nullptr;
  KvType type = KvType::f16;
  std::uint32_t tokens = 0;    ///< of the page
  std::uint32_t head_dim = 0;  ///< multiple of 16; of 32 for q8
};

/// The part of one page that one kv head's queries read, and these queries.
struct FoldInput {
  PageHead page;              ///< only read
  std::uint32_t vectors = 0;  ///< query vectors, 1 to fold_vectors_max
  /// [vectors] -> what prepare_query() made
  const std::byte* const* queries = nullptr;
  /// [vectors] first token of the page that the vector may read
  const std::uint32_t* begin = nullptr;
  /// [vectors] and the first one after it that it may not, > begin
  const std::uint32_t* end = nullptr;
  /// Of fold_groups(): how often each of its groups counts, finite, at least once. Null: once.
  const float* group_factors = nullptr;
};

/// Bytes of a query vector as the fold reads it; the same for all types, so that callers need not
/// know.
constexpr std::size_t prepared_query_bytes(std::uint32_t head_dim) {
  return std::size_t{head_dim} * sizeof(float);
}

/// Most query vectors of one fold call.
inline constexpr std::uint32_t fold_vectors_max = 12;

/// What one query vector has read: [maximum, sum, padding to 16][weighted value, head_dim].
/// Exponents are base 2.
constexpr std::size_t fold_state_floats(std::uint32_t head_dim) { return lanes + head_dim; }
/// Floats of scratch that a fold over pages of `page_tokens` needs.
constexpr std::size_t fold_scratch_floats(std::uint32_t page_tokens) {
  // Scores, and weights in another type.
  return std::size_t{fold_vectors_max} * 2 * page_tokens;
}

/// Tokens that are chosen together, in attention to a part of the tokens.
inline constexpr std::uint32_t group_tokens = 4;

/// Bytes of the key sketch of one kv head of a page (sketch-inl.h).
constexpr std::size_t key_sketch_bytes(std::uint32_t page_tokens, std::uint32_t head_dim) {
  return std::size_t{head_dim} * 2 +
         std::size_t{page_tokens / lanes} * lanes * (2 + std::size_t{head_dim} / 2);
}
/// Bytes of a query vector that is compared with sketches.
constexpr std::size_t sketch_query_bytes(std::uint32_t head_dim) {
  return std::size_t{head_dim} * 5 + 16;
}

/// Query vectors against the key sketch of one kv head of a page.
struct SketchInput {
  const std::byte* sketch = nullptr;
  std::uint32_t tokens = 0;  ///< of the page
  std::uint32_t head_dim = 0;
  std::uint32_t vectors = 0;                  ///< 1 to fold_vectors_max
  const std::byte* const* queries = nullptr;  ///< [vectors]: what prepare_sketch_query() made
};

/// Entropy-coded streams: lanes that take turns, slots of a table, and the least state between two
/// symbols.
inline constexpr std::uint32_t rans_lanes = 32;
inline constexpr std::uint32_t rans_bits = 12;
inline constexpr std::uint32_t rans_slots = 1U << rans_bits;
inline constexpr std::uint32_t rans_state_min = 1U << 16;

/// Where the reading of an entropy-coded stream is.
struct RansReader {
  std::uint32_t states[rans_lanes];
  const std::byte* next = nullptr;  ///< the words that are left
  const std::byte* end = nullptr;
};

/// In which order the bits of 16-bit values are split into an upper and a lower byte.
enum class HalfForm : std::uint8_t {
  as_is,
  sign_last,             ///< rotated left by one: the exponent of a bf16 becomes the upper byte
  lines_less_reference,  ///< i16 keys of a tile, less a reference of their dim; 128 more, so that
                         ///< the upper byte is the nearest and not the lower whole
};

/// Bytes of a tile in 8 and in 4 bits: values, and a scale per token and 32 dims.
constexpr std::size_t tile_bytes_8(std::uint32_t head_dim) {
  return std::size_t{lanes} * (head_dim + 2 * ((head_dim + quant_block - 1) / quant_block));
}
constexpr std::size_t tile_bytes_4(std::uint32_t head_dim) {
  return std::size_t{lanes} * (head_dim / 2 + (head_dim + quant_block - 1) / quant_block);
}

/// The 8-bit scales of codecs: 0, and (8 + code % 8) * 2^(code / 8 - 21).
constexpr float tile_scale(std::uint32_t code) {
  if (code == 0) return 0.0F;
  float scale = static_cast<float>(8 + code % 8) * 0x1p-21F;
  for (std::uint32_t i = 0; i < code / 8; ++i) scale *= 2.0F;
  return scale;
}

/// Numbers that a tile [dim][16 tokens] is multiplied with: those of dim d are at d * stride.
struct TileFactors {
  const float* first = nullptr;
  std::size_t stride = 0;  ///< 0: the same for all dims
};

struct KernelTable {
  const char* name;

  /// out[i] = x[i] / rms(x) * weight[i]
  void (*rms_norm)(const float* x, const float* weight, float epsilon, std::uint32_t width,
                   float* out);
  /// out[i] = silu(gate[i]) * up[i]
  void (*swiglu)(const float* gate, const float* up, std::uint32_t width, float* out);
  /// out[i] = gelu(gate[i]) * up[i], gelu in its tanh form
  void (*geglu)(const float* gate, const float* up, std::uint32_t width, float* out);
  /// x[i] += y[i]
  void (*add)(float* x, const float* y, std::uint32_t width);
  /// Quantises one row; `out` points at that row.
  void (*quantize_row)(const float* x, QuantizedRows out);

  /// Rotates pairs (2i, 2i+1) of one head in place by the angles in cosine/sine [pairs].
  void (*rope_pairs)(float* head, const float* cosine, const float* sine, std::uint32_t pairs);
  /// The same with pairs (i, pairs + i).
  void (*rope_halves)(float* head, const float* cosine, const float* sine, std::uint32_t pairs);

  /// Unpacks `columns` <= panel_columns columns from `first` on; the rest of the panel becomes
  /// zero.
  void (*unpack_panel)(const WeightRows& weights, std::uint32_t first, std::uint32_t columns,
                       IntegerPanel out);
  /// out[row][column] for all rows and `columns` columns of an unpacked panel. `out` points at the
  /// first column.
  void (*integer_panel_product)(WeightFormat format, const IntegerPanel& panel,
                                std::uint32_t columns, const QuantizedRows& rows,
                                std::uint32_t row_count, OutputRows out);
  /// One or a few rows (decoding, also of sequences together) times `columns` columns from `first`
  /// on, read in the file's layout. Formats without a direct kernel go through `scratch`.
  void (*integer_few_rows_product)(const WeightRows& weights, std::uint32_t first,
                                   std::uint32_t columns, const QuantizedRows& rows,
                                   std::uint32_t row_count, IntegerPanel scratch, OutputRows out);
  /// Widens `columns` <= panel_columns columns of f32, f16 or bf16 weights from `first` on into a
  /// panel [width][panel_columns]. Groups of 16 columns are written whole.
  void (*unpack_float_panel)(const WeightRows& weights, std::uint32_t first, std::uint32_t columns,
                             float* panel);
  /// One or a few rows times `columns` columns of f32, f16 or bf16 weights from `first` on, read in
  /// the file's layout.
  void (*float_few_rows_product)(const WeightRows& weights, std::uint32_t first,
                                 std::uint32_t columns, const float* rows, std::uint32_t row_count,
                                 OutputRows out);
  /// f32 panel [width][panel_columns] times f32 rows [row][width].
  void (*float_panel_product)(const float* panel, std::uint32_t width, std::uint32_t columns,
                              const float* rows, std::uint32_t row_count, OutputRows out);

  /// Writes K and V of `count` consecutive tokens of one kv head, which lie in one tile, from
  /// `token` on. Those of the next token are `stride` floats further.
  void (*store_kv)(const float* k, const float* v, std::size_t stride, std::uint32_t token,
                   std::uint32_t count, const PageHead& page);
  /// Scales one query vector by `scale`, which includes log2(e), and turns it into the form in
  /// which pages of that type are read: prepared_query_bytes(head_dim).
  void (*prepare_query)(const float* query, float scale, std::uint32_t head_dim, KvType type,
                        std::byte* out);
  /// The partial of one page for each vector: states[vector] = fold_state_floats(head_dim) floats,
  /// overwritten.
  void (*fold_page)(const FoldInput& input, float* scratch, float* states);
  /// The same of some groups of tokens, `count` >= 1 of them, ascending; every vector reads them.
  /// With all groups the bits are those of fold_page().
  void (*fold_groups)(const FoldInput& input, const std::uint16_t* groups, std::uint32_t count,
                      float* scratch, float* states);
  /// Asks memory for what a fold_groups() of them will read first. Changes nothing.
  void (*ask_for_groups)(const PageHead& page, const std::uint16_t* groups, std::uint32_t count);
  /// Adds a page's partial to a vector's state. Called in page order.
  void (*fold_merge)(float* state, const float* partial, std::uint32_t head_dim);
  /// out[i] = weighted value / sum
  void (*fold_finish)(const float* state, std::uint32_t head_dim, float* out);

  /// Writes the key sketch of a full page. `scratch`: [3 * head_dim * 16].
  void (*sketch_keys)(const PageHead& page, float* scratch, std::byte* sketch);
  /// A query vector, times `scale`, as sketch_scores() reads it: sketch_query_bytes(head_dim).
  void (*prepare_sketch_query)(const float* query, float scale, std::uint32_t head_dim,
                               std::byte* out);
  /// scores[vector * stride + token], estimated.
  void (*sketch_scores)(const SketchInput& input, float* scores, std::size_t stride);
  /// Weights 2^(score - maximum) of `count` tokens, a multiple of 16: their sums over groups of
  /// group_tokens go to `groups`, their largest score to `maximum`. Returns the sum of all.
  float (*sketch_weights)(const float* scores, std::uint32_t count, float* groups, float* maximum);

  /// Reads `count` symbols, a multiple of rans_lanes. `table` [rans_slots]: frequency | offset in
  /// the symbol's slots << 12 | symbol << 24. False: the words end too early, and what was read
  /// means nothing.
  bool (*rans_decode)(RansReader& reader, const std::uint32_t* table, std::size_t count,
                      std::uint8_t* out);
  /// Splits `count` values into bytes. `references` [head_dim], only for that form.
  void (*split_halves)(HalfForm form, const std::uint16_t* values, std::size_t count,
                       const std::uint16_t* references, std::uint8_t* upper, std::uint8_t* lower);
  /// The way back.
  void (*join_halves)(HalfForm form, const std::uint8_t* upper, const std::uint8_t* lower,
                      std::size_t count, const std::uint16_t* references, std::uint16_t* values);

  // Codecs see a tile of a page as f32 [dim][16 tokens], K and V alike (tile-inl.h).
  void (*load_tile)(const PageHead& page, std::uint32_t tile, float* k, float* v);
  /// Writes what store_kv writes for these 16 tokens.
  void (*store_tile)(const float* k, const float* v, std::uint32_t tile, const PageHead& page);
  /// means[dim] = the sum of sums[dim][16] / tokens, as f16.
  void (*tile_means)(const float* sums, std::uint32_t tokens, std::uint32_t head_dim,
                     std::uint16_t* means);
  /// x[dim][i] += sign * means[dim]
  void (*shift_tile)(float* x, const std::uint16_t* means, float sign, std::uint32_t head_dim);
  /// The Hadamard transform of each `size` dims, a power of two, times `factor`.
  void (*rotate_tile)(float* x, std::uint32_t size, float factor, std::uint32_t head_dim);
  /// Quantise a tile; return tile_bytes_8() or tile_bytes_4().
  std::size_t (*quantize_tile_8)(const float* x, std::uint32_t head_dim, std::byte* out);
  std::size_t (*quantize_tile_4)(const float* x, std::uint32_t head_dim, std::byte* out);
  void (*restore_tile_8)(const std::byte* in, std::uint32_t head_dim, float* x);
  void (*restore_tile_4)(const std::byte* in, std::uint32_t head_dim, float* x);
  /// levels[d * stride + i] = x[d][i] * factors[d][i] to the nearest number from -127 to 127.
  void (*quantize_levels)(const float* x, TileFactors factors, std::uint32_t head_dim,
                          std::size_t stride, std::int8_t* levels);
  /// x[d][i] = levels[d * stride + i] * factors[d][i]
  void (*restore_levels)(const std::int8_t* levels, std::size_t stride, TileFactors factors,
                         std::uint32_t head_dim, float* x);

  // Of no use but to measure what a core can do at best (peak-inl.h).
  /// `steps` rounds of 8-bit dot products; returns how many additions and multiplications.
  std::uint64_t (*int8_peak)(std::uint32_t steps);
  /// The same for pairs of bf16; 0 where no instruction multiplies them.
  std::uint64_t (*bf16_peak)(std::uint32_t steps);
  /// Reads `count` values, a multiple of 128, as fast as they come.
  float (*sum_floats)(const float* values, std::size_t count);
};

/// A state that has read nothing.
void fold_reset(float* state, std::uint32_t head_dim);

/// The table in use; chosen at the first call. What HEADRACE_FORCE_ISA names must be able to run
/// here: see check_forced_kernels().
const KernelTable& kernels();

/// Errors: invalid_argument, when HEADRACE_FORCE_ISA names a table that cannot run here.
Result<void> check_forced_kernels();

/// Every table that this machine can run, best first.
std::vector<const KernelTable*> tables_here();

/// The table of that name, or null if it was not built or this machine cannot run it.
const KernelTable* find_kernels(const char* name);

}  // namespace headrace::kernel
