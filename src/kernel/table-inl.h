// The kernel table of one instruction set. Each isa_*.cc defines HEADRACE_ISA and includes this
// file once.
#pragma once

// clang-format off: the kernels come in the order in which they use each other.
#include "kernel/kernels.h"
#include "kernel/simd.h"

#include "kernel/blocks-inl.h"
#include "kernel/matmul-inl.h"
#include "kernel/row_product-inl.h"
#include "kernel/float_product-inl.h"
#include "kernel/rows-inl.h"
#include "kernel/kv_common-inl.h"
#include "kernel/kv_float-inl.h"
#include "kernel/kv_bf16-inl.h"
#include "kernel/kv_i16-inl.h"
#include "kernel/kv_q8-inl.h"
#include "kernel/fold-inl.h"
#include "kernel/rans-inl.h"
#include "kernel/tile-inl.h"
#include "kernel/sketch-inl.h"
#include "kernel/peak-inl.h"
// clang-format on

namespace headrace::kernel::HEADRACE_ISA {

extern const KernelTable table;
const KernelTable table = {
    .name = HEADRACE_ISA_NAME,
    .rms_norm = rms_norm,
    .swiglu = swiglu,
    .geglu = geglu,
    .add = add_rows,
    .quantize_row = quantize_row,
    .rope_pairs = rope_pairs,
    .rope_halves = rope_halves,
    .unpack_panel = unpack_panel_any,
    .integer_panel_product = integer_panel_product_any,
    .integer_few_rows_product = integer_few_rows_product_any,
    .unpack_float_panel = unpack_float_panel_any,
    .float_few_rows_product = float_few_rows_product_any,
    .float_panel_product = float_panel_product,
    .store_kv = store_kv,
    .prepare_query = prepare_query,
    .fold_page = fold_page,
    .fold_groups = fold_groups,
    .ask_for_groups = ask_for_groups,
    .fold_merge = fold_merge,
    .fold_finish = fold_finish,
    .sketch_keys = sketch_keys,
    .prepare_sketch_query = prepare_sketch_query,
    .sketch_scores = sketch_scores,
    .sketch_weights = sketch_weights,
    .rans_decode = rans_decode,
    .split_halves = split_halves,
    .join_halves = join_halves,
    .load_tile = load_tile,
    .store_tile = store_tile,
    .tile_means = tile_means,
    .shift_tile = shift_tile,
    .rotate_tile = rotate_tile,
    .quantize_tile_8 = quantize_tile_8,
    .quantize_tile_4 = quantize_tile_4,
    .restore_tile_8 = restore_tile_8,
    .restore_tile_4 = restore_tile_4,
    .quantize_levels = quantize_levels,
    .restore_levels = restore_levels,
    .int8_peak = int8_peak,
    .bf16_peak = bf16_peak,
    .sum_floats = sum_floats,
};

}  // namespace headrace::kernel::HEADRACE_ISA
