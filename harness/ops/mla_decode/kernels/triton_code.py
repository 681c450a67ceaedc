"""The device code of `mla_decode` in Triton: split-KV programs over a paged latent cache, and their
combine step.

A split program holds up to 64 query rows (query token x head) of one request and loops over a range
of its pages. It copies tiles of 32 slots asynchronously into shared memory, as keys and as values.
Two tiles of a program are in flight, and a multiprocessor holds two programs. The plan is one
program: it cuts every request's pages into splits of about equal work.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

from harness.memory.triton_interpreter import prepare

INTERPRETED = prepare()


_INTERPRETED = tl.constexpr(INTERPRETED)


@triton.jit
def _normalized_query(values, unit, dtype: tl.constexpr):
    return (values.to(tl.float32) / unit[:, None]).to(dtype)


@triton.jit
def _query_columns(
    q_row, in_row, ROWS: tl.constexpr, WIDTH: tl.constexpr, HALF: tl.constexpr, NARROW: tl.constexpr
):
    """The columns of the query that `_cache_columns` gives, HALF at a time, and the largest of each
    row.
    """
    if NARROW:
        # Neighbours are loaded together and split in registers: loads of every other column are
        # half as wide.
        column = tl.arange(0, 2 * HALF)[None, :]
        pairs = tl.load(q_row + column, mask=in_row & (column < WIDTH), other=0.0)
        a, b = tl.split(tl.reshape(pairs, (ROWS, HALF, 2)))
    else:
        column = tl.arange(0, HALF)[None, :]
        mask = in_row & (column < WIDTH // 2)
        a = tl.load(q_row + column, mask=mask, other=0.0)
        b = tl.load(q_row + WIDTH // 2 + column, mask=mask, other=0.0)
    return a, b, tl.max(tl.maximum(tl.abs(a.to(tl.float32)), tl.abs(b.to(tl.float32))), axis=1)


@triton.jit
def _bytes_of_pairs(pairs, ODD: tl.constexpr):
    """The low or the high bytes of pairs of float8, as float16.

    One result each: of an asm with two, Triton 3.8 takes the second through shared memory, without
    a swizzle.
    """
    # Two pairs at a time: bytes 0 and 2 are even columns, 1 and 3 odd ones.
    return tl.inline_asm_elementwise(
        "{ .reg .b32 bytes; .reg .b16 even, odd; prmt.b32 bytes, $1, 0, 0x3120; mov.b32 {even,"
        " odd}, bytes; cvt.rn.f16x2.e4m3x2 $0, " + ("odd" if ODD else "even") + "; }",
        "=r,r",
        [pairs],
        dtype=tl.float16,
        is_pure=True,
        pack=2,
    )


@triton.jit
def _cache_columns(
    slot, index, mask, WIDTH: tl.constexpr, COMPUTE: tl.constexpr, NARROW: tl.constexpr
):
    """Two tiles of a cache `WIDTH` columns wide: its halves, or of float8 its even and its odd
    columns.

    The two dots need a tile in different orders. Shared memory gives 16-bit words in either, but
    not bytes. So float8 is copied as pairs, and each dot takes the pairs apart in registers.
    """
    # Only a tile that is padded to the width of a dot needs a mask by column, which slows copies.
    if index.shape[0] != WIDTH // 2:
        mask = mask & (index < WIDTH // 2)[None, :]
    if NARROW:
        pairs = tl.load(slot + index[None, :], mask=mask, other=0)
        if _INTERPRETED:
            a = (pairs & 0xFF).to(tl.uint8).to(tl.float8e4nv, bitcast=True)
            b = ((pairs >> 8) & 0xFF).to(tl.uint8).to(tl.float8e4nv, bitcast=True)
        else:
            a = _bytes_of_pairs(pairs, 0)
            b = _bytes_of_pairs(pairs, 1)
    else:
        a = tl.load(slot + index[None, :], mask=mask, other=0.0)
        b = tl.load(slot + WIDTH // 2 + index[None, :], mask=mask, other=0.0)
    return a.to(COMPUTE), b.to(COMPUTE)


@triton.jit
def _power_of_two_below(largest):
    """The power of two at or below each of `largest` [rows] float32; 1 where it is no usable size.

    A row of zeros, and one with a NaN or an Inf, keep their values and are not scaled.
    """
    usable = (largest > 1.0e-30) & (largest < 1.0e30)
    return tl.exp2(tl.floor(tl.log2(tl.where(usable, largest, 1.0))))


@triton.jit
def _store_partial(
    partial_out, partial_lse, partial_row, in_row, acc_a, acc_b, top, total, value_scale,
    R: tl.constexpr, HALF: tl.constexpr, NARROW: tl.constexpr,
):  # fmt: skip
    """Divide the halves of the values [rows, HALF] by their weights, and store them with the lse.

    Of each half the first R / 2 columns are values, and the others pad it to the width of a dot.

    The lse has base 2 here, as the exponents of the loop do; the combine step converts it.
    """
    # The values of a row without keys are 0, and 0 / 0 would be NaN.
    no_keys = total == 0.0
    divisor = tl.where(no_keys, 1.0, total)
    lse = tl.where(no_keys, float("-inf"), top + tl.log2(divisor))
    tl.store(partial_lse + partial_row, lse, mask=in_row)
    factor = (value_scale / divisor)[:, None]
    out_row = partial_out + partial_row[:, None] * R
    if NARROW:
        # The halves are even and odd columns, see `_cache_columns`.
        column = tl.arange(0, 2 * HALF)[None, :]
        both = tl.interleave(acc_a * factor, acc_b * factor)
        tl.store(out_row + column, both, mask=in_row[:, None] & (column < R))
    else:
        index = tl.arange(0, HALF)[None, :]
        mask = in_row[:, None] & (index < R // 2)
        tl.store(out_row + index, acc_a * factor, mask=mask)
        tl.store(out_row + R // 2 + index, acc_b * factor, mask=mask)


# Counts that differ from case to case would each be compiled for 1, for multiples of 16, and for
# the rest.
_COUNTS = ["num_requests", "max_splits", "query_len", "num_heads", "stride_table"]


@triton.jit(do_not_specialize=_COUNTS)
def decode_split(
    q, kv_cache, block_table, seq_lens, kv_scale, work, partial_out, partial_lse,
    score_scale, value_scale, num_requests, max_splits, query_len, num_heads, stride_page,
    stride_slot, stride_table,
    R: tl.constexpr, E: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_E: tl.constexpr,
    BLOCK_ROWS: tl.constexpr, BLOCK_SLOTS: tl.constexpr,
    PAGE: tl.constexpr, COMPUTE: tl.constexpr, NARROW_CACHE: tl.constexpr, FIT_QUERY: tl.constexpr,
    STAGES: tl.constexpr, MASK_VALUES: tl.constexpr,
):  # fmt: skip
    """Attend to one item of the plan; grid (W, ceil(S * H / BLOCK_ROWS)).

    Writes partial_out [W, S * H, R] and partial_lse [W, S * H] (base 2, -inf for a row that sees no
    key here). Items without pages write nothing. NARROW_CACHE: the cache is float8 e4m3, seen as
    int16 pairs, strides too.
    """
    # First splits of all requests come first, so that the unused tail of the plan runs when the
    # work is done.
    program = tl.program_id(0)
    item = ((program % num_requests) * max_splits + program // num_requests).to(tl.int64)
    request = tl.load(work + item * 3).to(tl.int64)
    # A stray request number reads no memory. Its partial stays unwritten, where the poison shows
    # it.
    if (request >= 0) & (request < num_requests):
        seq_len = tl.load(seq_lens + request)
        begin = tl.maximum(tl.load(work + item * 3 + 1), 0)
        end = tl.minimum(tl.load(work + item * 3 + 2), (seq_len + PAGE - 1) // PAGE)
        if begin < end:
            row = tl.program_id(1) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
            num_rows = query_len * num_heads
            in_row = (row < num_rows)[:, None]
            index = tl.arange(0, BLOCK_R)
            rope_index = tl.arange(0, BLOCK_E)
            q_row = q + (request * num_rows + row)[:, None] * (R + E)
            q_a, q_b, largest = _query_columns(q_row, in_row, BLOCK_ROWS, R, BLOCK_R, NARROW_CACHE)
            q_c, q_d, largest_rope = _query_columns(
                q_row + R, in_row, BLOCK_ROWS, E, BLOCK_E, NARROW_CACHE
            )
            row_scale = tl.full((BLOCK_ROWS,), 1.0, tl.float32) * score_scale
            if kv_scale is not None:
                row_scale = row_scale * tl.load(kv_scale)
                value_scale = value_scale * tl.load(kv_scale)
            if FIT_QUERY:
                # float8 is exact in float16; a power of two for each row brings the query into its
                # range, exactly.
                unit = _power_of_two_below(tl.maximum(largest, largest_rope))
                row_scale = row_scale * unit
            else:
                unit = tl.full((BLOCK_ROWS,), 1.0, tl.float32)
            q_a = _normalized_query(q_a, unit, COMPUTE)
            q_b = _normalized_query(q_b, unit, COMPUTE)
            q_c = _normalized_query(q_c, unit, COMPUTE)
            q_d = _normalized_query(q_d, unit, COMPUTE)
            # Query token s of S sees all but the last S - 1 - s positions.
            visible = seq_len - query_len + 1 + row // num_heads
            top = tl.full((BLOCK_ROWS,), float("-inf"), tl.float32)
            total = tl.zeros((BLOCK_ROWS,), tl.float32)
            acc_a = tl.zeros((BLOCK_ROWS, BLOCK_R), tl.float32)
            acc_b = tl.zeros((BLOCK_ROWS, BLOCK_R), tl.float32)
            table_row = block_table + request * stride_table
            offset = tl.arange(0, BLOCK_SLOTS)
            used = tl.minimum(end * PAGE, seq_len)
            # A kernel that masks by multiplying reads whole pages, so their unused slots must be
            # finite.
            stop = used if MASK_VALUES else end * PAGE
            for start in tl.range(begin * PAGE, stop, BLOCK_SLOTS, num_stages=STAGES):
                page = tl.load(table_row + start // PAGE).to(tl.int64)
                slot = (
                    kv_cache
                    + page * stride_page
                    + (start % PAGE + offset).to(tl.int64)[:, None] * stride_slot
                )
                position = start + offset
                # The masks of these loads select slots past the length away, before any arithmetic.
                live = (position < stop)[:, None]
                a, b = _cache_columns(slot, index, live, R, COMPUTE, NARROW_CACHE)
                rope = slot + (R // 2 if NARROW_CACHE else R)
                c, d = _cache_columns(rope, rope_index, live, E, COMPUTE, NARROW_CACHE)
                score = tl.dot(q_a, tl.trans(a), input_precision="ieee")
                score = tl.dot(q_c, tl.trans(c), score, input_precision="ieee")
                other = tl.dot(q_b, tl.trans(b), input_precision="ieee")
                other = tl.dot(q_d, tl.trans(d), other, input_precision="ieee")
                # Two chains of dots, each half as long. The compiler would make one of them without
                # the two products.
                score = score * row_scale[:, None] + other * row_scale[:, None]
                keep = (position < used)[None, :] & (position[None, :] < visible[:, None])
                score = tl.where(keep, score, float("-inf"))
                new_top = tl.maximum(top, tl.max(score, axis=1))
                shift = tl.where(new_top == float("-inf"), 0.0, new_top)
                weight = tl.exp2(score - shift[:, None])
                decay = tl.exp2(top - shift)
                total = total * decay + tl.sum(weight, axis=1)
                weight = weight.to(COMPUTE)
                acc_a = tl.dot(weight, a, acc_a * decay[:, None], input_precision="ieee")
                acc_b = tl.dot(weight, b, acc_b * decay[:, None], input_precision="ieee")
                top = new_top
            _store_partial(
                partial_out, partial_lse, item * num_rows + row, row < num_rows,
                acc_a, acc_b, top, total, value_scale, R, BLOCK_R, NARROW_CACHE,
            )  # fmt: skip


@triton.jit(do_not_specialize=["max_splits", "query_len", "num_heads"])
def combine_splits(
    partial_out, partial_lse, seq_lens, work, out, lse, max_splits, query_len, num_heads,
    R: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_SPLITS: tl.constexpr, PAGE: tl.constexpr,
    WRITE_EMPTY: tl.constexpr,
):  # fmt: skip
    """Merge the partials of one request; grid (B, ceil(S * H / BLOCK_ROWS)).

    Rows without keys get out 0 and lse -inf, or, without WRITE_EMPTY, nothing.
    """
    request = tl.program_id(0).to(tl.int64)
    num_rows = query_len * num_heads
    row = tl.program_id(1) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    in_row = row < num_rows
    columns = tl.arange(0, R)
    first = request * max_splits
    pages = (tl.load(seq_lens + request) + PAGE - 1) // PAGE
    split = tl.arange(0, BLOCK_SPLITS)
    planned = split < max_splits
    # Clipped as in the split programs, so that both agree on which partials were written.
    begin = tl.maximum(tl.load(work + (first + split) * 3 + 1, mask=planned, other=0), 0)
    end = tl.minimum(tl.load(work + (first + split) * 3 + 2, mask=planned, other=0), pages)
    # Partials of items without work were never written; they are not loaded at all.
    used = planned & (begin < end)
    part_row = (first + split)[None, :] * num_rows + row[:, None]
    part = tl.load(
        partial_lse + part_row, mask=in_row[:, None] & used[None, :], other=float("-inf")
    )
    top = tl.max(part, axis=1)
    top = tl.where(top == float("-inf"), 0.0, top)
    total = tl.sum(tl.exp2(part - top[:, None]), axis=1)
    no_keys = total == 0.0
    divisor = tl.where(no_keys, 1.0, total)
    acc = tl.zeros((BLOCK_ROWS, R), tl.float32)
    for i in range(tl.max(tl.where(used, split + 1, 0), axis=0)):
        item = first + i
        i_begin = tl.maximum(tl.load(work + item * 3 + 1), 0)
        i_end = tl.minimum(tl.load(work + item * 3 + 2), pages)
        i_row = item * num_rows + row
        i_lse = tl.load(partial_lse + i_row, mask=in_row & (i_begin < i_end), other=float("-inf"))
        readable = in_row & (i_lse != float("-inf"))
        value = tl.load(
            partial_out + i_row[:, None] * R + columns[None, :], mask=readable[:, None], other=0.0
        )
        acc += value * (tl.exp2(i_lse - top) / divisor)[:, None]
    out_row = request * num_rows + row
    out_at = out + out_row[:, None] * R + columns[None, :]
    written = in_row if WRITE_EMPTY else in_row & ~no_keys
    tl.store(out_at, acc.to(out.dtype.element_ty), mask=written[:, None])
    # From base 2 to the natural logarithm, and from [S, H] rows to lse [B, H, S].
    natural = tl.where(no_keys, float("-inf"), (top + tl.log2(divisor)) * 0.6931471805599453)
    lse_at = (request * num_heads + row % num_heads) * query_len + row // num_heads
    tl.store(lse + lse_at, natural, mask=written)
