"""The server of llama.cpp's wheel listens where it is told, in old releases and new ones."""

from __future__ import annotations

import importlib
import sys
from types import SimpleNamespace

import pytest


@pytest.mark.parametrize(("field", "value"), [("hostname", "::1"), ("hostnames", ["::1"])])
def test_the_host_goes_into_the_field_that_the_release_has(
    field: str, value: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = SimpleNamespace(
        model=SimpleNamespace(), cpuparams=SimpleNamespace(), cpuparams_batch=SimpleNamespace()
    )
    setattr(made, field, None)
    llama = SimpleNamespace(
        CommonParams=lambda: made,
        ggml_type=SimpleNamespace(GGML_TYPE_F16=1),
        llama_flash_attn_type=SimpleNamespace(LLAMA_FLASH_ATTN_TYPE_AUTO=0),
    )
    monkeypatch.setitem(sys.modules, "xllamacpp", llama)
    server = importlib.import_module("benchmarks.xllamacpp_server")
    monkeypatch.setattr(server, "llama", llama)
    params = server.params_of(server.parsed(["-m", "x.gguf", "--host", "::1"]))
    assert vars(params)[field] == value
    assert {"hostname", "hostnames"} & vars(params).keys() == {field}
