"""The poison knows the sites of the harness and of its engines, whatever was imported first."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch_poison.patterns import bits_view, sentinel_bits, site_of_bits
from torch_poison.sites import MOST_TAG

from harness.core.catalog import SITES

TAGGED = [torch.float64, torch.float32, torch.float16, torch.bfloat16]


def test_tags_of_sites_are_distinct_and_fit_the_payload() -> None:
    tags = [site.tag for site in SITES]
    assert len(set(tags)) == len(tags) and min(tags) >= 1 and max(tags) <= MOST_TAG


@pytest.mark.parametrize("dtype", TAGGED)
def test_every_site_has_a_sentinel_of_its_own(dtype: torch.dtype) -> None:
    bits = {site: sentinel_bits(dtype, site) for site in SITES.names()}
    assert len(set(bits.values())) == len(SITES)
    for site, sentinel in bits.items():
        tensor = torch.zeros(1, dtype=dtype)
        bits_view(tensor).fill_(sentinel)
        assert bool(tensor.isnan()) and site_of_bits(dtype, sentinel) == site


def test_a_process_that_imports_no_catalog_reads_the_site_of_a_sentinel() -> None:
    code = (
        "import sys, torch, harness\n"
        "from torch_poison.patterns import site_of_bits\n"
        "assert 'harness.core.catalog' not in sys.modules\n"
        "print(site_of_bits(torch.bfloat16, 0x7FC6))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "kv.tail\n"
