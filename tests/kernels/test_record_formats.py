"""The formats of cache records byte by byte, and their writers and readers in torch."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import get_args

import pytest
import torch

from harness.core.call_words import RecordFormat
from harness.core.findings import Finding
from harness.core.ops import PAGE_SIZE
from harness.ops.mla_decode_sparse import reference as mla_decode_sparse_reference
from harness.ops.mla_decode_sparse.kernels.gather import mla_decode_sparse
from harness.ops.parts import record_views as torch_records
from harness.ops.parts.record_formats import (
    RECORDS,
    _e2m1_codes,
    decode,
    encode,
    places,
    rounding,
    spans,
    store,
    stored,
)
from harness.ops.read_records import inputs as read_records_inputs
from harness.ops.read_records.kernels.dense import read_records
from harness.ops.read_records.params import ReadRecordsParams
from harness.ops.write_records import inputs as write_records_inputs
from harness.ops.write_records.kernels import dense as write_kernel
from harness.ops.write_records.kernels.dense import write_records
from harness.ops.write_records.params import WriteRecordsParams

Judge = Callable[..., list[Finding]]
NAMES = get_args(RecordFormat)
BYTES = {
    "bf16": 1152,
    "fp8_e4m3": 576,
    "fp8_ds_mla": 656,
    "indexer_planar": 132,
    "indexer_interleaved": 132,
    "indexer_shuffled": 132,
    "nvfp4_linear": 72,
    "nvfp4_swizzled": 72,
}


def rows(name: str, num_rows: int = 5) -> torch.Tensor:
    return torch.randn(
        num_rows, RECORDS[name].width, generator=torch.Generator().manual_seed(3)
    ).bfloat16()


def test_the_table_has_each_format_with_its_documented_size() -> None:
    assert {name: form.num_bytes for name, form in RECORDS.items()} == BYTES
    assert tuple(RECORDS) == NAMES


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("page_size", [16, 64])
def test_each_byte_of_a_block_belongs_to_one_byte_of_one_record(name: str, page_size: int) -> None:
    found = places(name, page_size)
    assert found.shape == (page_size, BYTES[name])
    assert torch.equal(found.flatten().sort().values, torch.arange(page_size * BYTES[name]))


@pytest.mark.parametrize(
    ("name", "token", "byte", "place"),
    [
        ("fp8_ds_mla", 2, 512, 2 * 656 + 512),  # the first scale of the third record
        ("indexer_planar", 3, 5, 3 * 128 + 5),
        ("indexer_planar", 3, 129, 64 * 128 + 3 * 4 + 1),
        ("indexer_interleaved", 3, 129, 3 * 132 + 129),
        (
            "indexer_shuffled",
            17,
            35,
            16 * 128 + 2 * 256 + 1 * 16 + 3,
        ),  # tile of tokens 1, tile of bytes 2
        ("indexer_shuffled", 17, 130, 64 * 128 + 17 * 4 + 2),
        ("nvfp4_linear", 5, 67, 64 * 64 + 5 * 8 + 3),
        ("nvfp4_swizzled", 5, 63, 5 * 64 + 63),
        (
            "nvfp4_swizzled",
            5,
            64 + 3,
            64 * 64 + (4 + 1) * 8 + 1 * 4 + 1,
        ),  # row 4 + 3 // 2, column 3 % 2 * 4 + 5 % 4
    ],
)
def test_a_byte_lies_where_the_format_says(name: str, token: int, byte: int, place: int) -> None:
    assert int(places(name, 64)[token, byte]) == place


def test_a_record_of_fp8_ds_mla_has_codes_then_scales_then_rope() -> None:
    row = torch.zeros(1, 576)
    row[0, :128], row[0, 128:256], row[0, 575] = 448.0, -224.0, 1.5
    record = encode(row, "fp8_ds_mla")[0]
    assert record[:128].tolist() == [0x7E] * 128 and record[128:256].tolist() == [0xFE] * 128
    assert record[512:528].view(torch.float32).tolist()[:2] == [1.0, 0.5]
    assert record[654:656].tolist() == [0xC0, 0x3F]  # 1.5 in bfloat16, low byte first


def test_a_record_of_the_indexer_is_128_codes_and_one_float() -> None:
    row = torch.full((1, 128), 0.25)
    record = encode(row, "indexer_planar")[0]
    assert record[:128].tolist() == [0x7E] * 128
    assert record[128:].view(torch.float32).item() == pytest.approx(0.25 / 448)


def test_nvfp4_codes_halfway_are_the_smaller_and_those_of_the_scale_0_are_0() -> None:
    halfway = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 6.0], dtype=torch.float64)
    group = torch.cat((halfway, -halfway)).view(1, 1, 16)
    low, high = _e2m1_codes(group)[0].split(4)
    assert low.tolist() == [0x10, 0x32, 0x54, 0x76]
    assert high.tolist() == [0x98, 0xBA, 0xDC, 0xFE]
    without_scale = torch.tensor([torch.inf, torch.nan]).repeat(8).double().view(1, 1, 16)
    assert not _e2m1_codes(without_scale).any()


def test_nvfp4_codes_lie_two_a_byte_the_first_in_the_low_half() -> None:
    row = torch.zeros(1, 128)
    row[0, :4] = torch.tensor([6.0, -1.0, 0.5, 3.0])
    record = encode(row, "nvfp4_linear")[0]
    assert record[:2].tolist() == [0xA7, 0x51]
    assert record[64:66].tolist() == [0x38, 0]  # a block scale of 1, and one of a block of zeros
    scaled = encode(row * 2, "nvfp4_linear", scale=2.0)[0]
    assert torch.equal(scaled, record) and decode(scaled[None], "nvfp4_linear", 2.0)[
        0, :4
    ].tolist() == [12, -2, 1, 6]


@pytest.mark.parametrize("name", NAMES)
def test_a_row_comes_back_as_close_as_its_format_allows(name: str) -> None:
    x, form = rows(name, 40), RECORDS[name]
    scale = 0.0117 if form.is_scaled else None
    back = decode(encode(x, name, scale), name, scale)
    assert torch.equal(back[:, form.quantized :], x[:, form.quantized :].double())
    if form.quantized:
        error = (back - x.double()).norm(dim=1) / x.double().norm(dim=1)
        low, high = (0.07, 0.13) if name.startswith("nvfp4") else (0.015, 0.035)
        assert low < float(error.min()) and float(error.max()) < high


@pytest.mark.parametrize("scale", [None, 0.0117])
def test_the_rounding_of_nvfp4_covers_every_size_of_values_and_no_wrong_code(
    scale: float | None,
) -> None:
    generator = torch.Generator().manual_seed(4)
    x = torch.randn(4000, 128, generator=generator) * torch.exp2(
        torch.randint(-10, 4, (4000, 1), generator=generator)
    )
    allowed = rounding(x, "nvfp4_linear", scale)
    assert allowed is not None and rounding(x, "fp8_ds_mla", scale) is None
    records = encode(x, "nvfp4_linear", scale)
    assert ((decode(records, "nvfp4_linear", scale) - x.double()).abs() <= allowed).all()
    records[:, 0] ^= 0x08  # the sign of the first element
    wrong = (decode(records, "nvfp4_linear", scale) - x.double()).abs() > allowed
    large = x[:, 0].abs() > 0.2 * x[:, :16].abs().amax(dim=1)
    assert not wrong[:, 1:].any() and wrong[large & (x.abs().amax(dim=1) > 0.1), 0].all()


@pytest.mark.parametrize("name", NAMES)
def test_records_are_stored_and_found_in_their_slots_alone_in_blocks_of_two_layers(
    name: str,
) -> None:
    storage = torch.zeros(3, 2, PAGE_SIZE, BYTES[name], dtype=torch.uint8)
    slots = torch.tensor([64, 67, 130, 191])
    records = encode(rows(name, 4), name)
    store(records, storage[:, 1], slots, name)
    assert torch.equal(stored(storage[:, 1], slots, name), records)
    written = sum(int((span != 0).sum()) for span in spans(storage[:, 1], slots, name))
    assert int((storage != 0).sum()) == written == int((records != 0).sum())
    assert sum(span.numel() for span in spans(storage[:, 1], slots, name)) == records.numel()


@pytest.mark.parametrize("name", NAMES)
def test_the_torch_writer_stores_what_the_reference_decodes_and_the_reader_what_it_encoded(
    name: str,
) -> None:
    form = RECORDS[name]
    scale = 0.0117 if form.is_scaled else None
    ours = torch.zeros(3, 2, PAGE_SIZE, BYTES[name], dtype=torch.uint8)
    x, slots = rows(name, 4), torch.tensor([64, -1, 130, 191])
    write_records(x, ours[:, 1], slots, record_format=name, scale=scale)
    want = torch.zeros_like(ours)
    store(encode(x[slots >= 0], name, scale), want[:, 1], slots[slots >= 0], name)
    decoded = [
        decode(stored(side[:, 1], slots[slots >= 0], name), name, scale) for side in (ours, want)
    ]
    torch.testing.assert_close(decoded[0], decoded[1], rtol=0.2, atol=0.02)
    out = read_records(
        want[:, 1],
        torch.tensor([[1, 2]]),
        torch.tensor([0, 67], dtype=torch.int32),
        record_format=name,
        scale=scale,
    )
    torch.testing.assert_close(out[[0, 66]].double(), decoded[1][:2], rtol=1e-6, atol=0)


@pytest.mark.first(8)
@pytest.mark.parametrize("kv", NAMES)
@pytest.mark.parametrize("layers", [1, 3])
def test_writers_and_readers_are_right_at_the_edges_of_pages(
    judge: Judge, kv: str, layers: int
) -> None:
    for tokens, padded in [(1, 0), (63, 2), (64, 0), (65, 1)]:
        assert not judge(
            "write_records", kv=kv, layers=layers, num_tokens=tokens, num_padded=padded
        )
    for lengths in ([1], [64], [0, 63, 65, 0]):
        assert not judge("read_records", kv=kv, layers=layers, seq_lens=lengths)


def test_inputs_are_the_same_for_one_seed_and_list_the_slots_that_nothing_owns() -> None:
    params = WriteRecordsParams(kv="indexer_shuffled", num_tokens=5, num_padded=2, layers=2)
    first, again, other = (write_records_inputs.draw(params, seed) for seed in (1, 1, 2))
    assert torch.equal(first.storage, again.storage) and not torch.equal(first.x, other.x)
    assert (
        first.slot_mapping[-2:].tolist() == [-1, -1]
        and int(first.slot_mapping[:-2].min()) >= PAGE_SIZE
    )
    assert first.cache.stride(0) == 2 * PAGE_SIZE * 132
    new = sum(part.memory.numel() for part in first.unowned if part.site == "kv.new")
    assert new == 5 * 132
    read = read_records_inputs.draw(ReadRecordsParams(kv="nvfp4_swizzled", seq_lens=(5, 0, 64)), 1)
    tail = sum(part.memory.numel() for part in read.unowned if part.site == "kv.tail")
    assert tail == 59 * 72 and read.cu_seq_lens.tolist() == [0, 5, 5, 69]


def test_sparse_decode_reads_records_of_fp8_ds_mla(judge: Judge) -> None:
    assert not judge("mla_decode_sparse", kv="fp8_ds_mla", num_chosen=[16, 0, 1, 5], num_heads=4)
    generator = torch.Generator().manual_seed(1)
    q = torch.randn(1, 2, 576, generator=generator)
    latents = torch.randn(2 * PAGE_SIZE, 576, generator=generator).bfloat16()
    cache = encode(latents, "fp8_ds_mla").view(2, PAGE_SIZE, 656)
    indices = torch.tensor([[3, 70, -1]], dtype=torch.int32)
    out, _ = mla_decode_sparse(q, cache, indices, scale=0.04)
    near = mla_decode_sparse_reference.expected(
        q, latents.view(2, PAGE_SIZE, 576), indices, scale=0.04
    )
    assert float((out.double() - near.out).norm() / near.out.norm()) < 0.05


WRONG: list[tuple[str, str, str]] = [
    ("write_records", "indexer_planar", "indexer_interleaved"),
    ("write_records", "indexer_shuffled", "indexer_planar"),
    ("write_records", "nvfp4_swizzled", "nvfp4_linear"),
    ("read_records", "indexer_interleaved", "indexer_planar"),
    ("read_records", "indexer_shuffled", "indexer_planar"),
    ("read_records", "nvfp4_linear", "nvfp4_swizzled"),
]


@pytest.mark.parametrize(("op", "kv", "other"), WRONG)
def test_bytes_of_another_format_of_the_same_size_are_findings(
    judge: Judge, monkeypatch: pytest.MonkeyPatch, op: str, kv: str, other: str
) -> None:
    kernel = importlib.import_module(f"harness.ops.{op}.kernels.dense")
    right = getattr(kernel, op)
    monkeypatch.setattr(
        kernel,
        op,
        lambda *args, record_format, **kw: right(*args, record_format=other, **kw),
    )
    found = judge(op, kv=kv)
    assert "reference" in {finding.oracle for finding in found}


@pytest.mark.parametrize("wrong", ["doubled", "half scale", "rope"])
def test_a_record_with_a_wrong_part_is_a_finding(
    judge: Judge, monkeypatch: pytest.MonkeyPatch, wrong: str
) -> None:
    encoded = torch_records.encoded

    def broken(x: torch.Tensor, record_format: str, scale: float | None) -> list[torch.Tensor]:
        (record,) = encoded(x * (2 if wrong == "doubled" else 1), record_format, scale)
        if wrong == "half scale":
            record[:, 512:516] = (record[:, 512:516].contiguous().view(torch.float32) / 2).view(
                torch.uint8
            )
        if wrong == "rope":
            record[:, 528] ^= 1
        return [record]

    monkeypatch.setattr(write_kernel, "encoded", broken)
    found = judge("write_records", kv="fp8_ds_mla")
    assert {finding.oracle for finding in found} == {"reference"}


def test_a_writer_that_leaves_a_scale_unwritten_is_blamed_on_new_slots(
    judge: Judge, monkeypatch: pytest.MonkeyPatch
) -> None:
    views = torch_records.record_views
    monkeypatch.setattr(
        write_kernel,
        "record_views",
        lambda cache, name: [views(cache, name)[0], torch.empty_like(views(cache, name)[1])],
    )
    found = judge(
        "write_records", kv="indexer_planar", sites=frozenset({"kv.new"}), patterns=("nan", "zeros")
    )
    assert "finite" in {finding.oracle for finding in found}
