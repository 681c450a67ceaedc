"""How far vLLM or SGLang is from transformers on random checkpoints, by architecture, backend,
cache and graphs.

    python benchmarks/random_checkpoints.py CHECKPOINTS OUT [--engine sglang] [--jobs 6] [--seconds
    540] [--only TEXT]
        [--with-faults] [--judge]

CHECKPOINTS holds folders that `mla-harness canary random ARCH` wrote, named by architecture. Each
case is a process of its own with the plain engine, or vLLM with what MLA_HARNESS_POISON and
MLA_HARNESS_FAULT say: log probabilities of the prompts, then 32 generated tokens. OUT gets
`CASE.json` for `mla-harness canary logprobs`, and `CASE.log`. The table at the end has the
distances from the truth: median, 99 % quantile, and the median past token 512, where an indexer
begins to select. Then the decisions that were recorded, by stage and layer. A case that
fails has its last words.

`--with-faults` also runs vLLM with each small bug of `vllm_faults.py`. `--judge` prints what
`canary logprobs` says of each case; it needs a CPU for half a minute a case.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
EAGER = {"enforce_eager": True}
FULL = {"compilation_config": {"cudagraph_mode": "FULL", "cudagraph_capture_sizes": [1, 2, 4, 8]}}
GRAPHS: dict[str, dict[str, Any]] = {"eager": EAGER, "default": {}, "full": FULL}
SPARSE = ("FLASHMLA_SPARSE", "FLASHINFER_MLA_SPARSE_SM90", "FLASH_ATTN_MLA_SPARSE")
SPARSE_MODELS = ("deepseek_v32", "glm_moe_dsa")
CHUNKS = {"max_num_batched_tokens": 96, "enable_chunked_prefill": True}
SELECTED = 512
LONG: dict[str, Any] = {
    "max_model_len": 4096,
    # It would compile many kernels that no prompt needs, for minutes.
    "kernel_config": {"enable_jit_warmup": False, "enable_flashinfer_autotune": False},
}
"""For DeepSeek V4, whose indexer chooses past 2,048 tokens."""


def cases(with_faults: bool) -> dict[str, tuple[str, dict[str, Any]]]:
    """Name -> architecture and arguments of `LLM`. What matters most comes first."""
    found: dict[str, tuple[str, dict[str, Any]]] = {}

    def add(
        architecture: str, backend: str, cache: str, graphs: str, *more: str, **arguments: Any
    ) -> None:
        name = "-".join((architecture, backend.lower() or "auto", cache, graphs, *more))
        options: dict[str, Any] = GRAPHS[graphs] | arguments
        options |= {"attention_backend": backend} if backend else {}
        options |= {"kv_cache_dtype": cache} if cache != "auto" else {}
        options |= {"skip_tokenizer_init": False} if architecture == "kimi_linear" else {}
        options |= LONG if architecture == "deepseek_v4" else {}
        found[name] = (architecture, options)

    if with_faults:
        from vllm_faults import FAULTS

        for fault, (architecture, _) in FAULTS.items():
            add(
                architecture,
                SPARSE[0] if architecture in SPARSE_MODELS else "",
                "auto",
                "eager",
                fault,
                fault=fault,
            )
    for backend in SPARSE:
        add("deepseek_v32", backend, "auto", "eager")
    add("deepseek_v32", SPARSE[0], "fp8_ds_mla", "eager")
    for architecture in (
        "deepseek_v2",
        "glm_moe_dsa",
        "deepseek_v4",
        "kimi_linear",
        "longcat_flash",
    ):
        add(architecture, "", "auto", "eager")
    for backend in SPARSE:
        add("deepseek_v32", backend, "auto", "full")
        add("glm_moe_dsa", backend, "auto", "default")
    add("deepseek_v32", SPARSE[0], "fp8_ds_mla", "full")
    add("deepseek_v32", SPARSE[0], "auto", "eager", "chunks", **CHUNKS)
    add("deepseek_v4", "", "auto", "default")
    add("kimi_linear", "", "auto", "default")
    for backend in ("FLASH_ATTN_MLA", "FLASHMLA", "TRITON_MLA"):
        add("deepseek_v2", backend, "auto", "full")
    for backend in ("FLASHMLA", "TRITON_MLA"):
        add("deepseek_v2", backend, "fp8", "full")
    add("deepseek_v32", SPARSE[0], "auto", "default")
    add("deepseek_v32", SPARSE[1], "auto", "eager", "chunks", **CHUNKS)
    return found


def sglang_cases(with_faults: bool) -> dict[str, tuple[str, dict[str, Any]]]:
    """As `cases`, with arguments of `sglang.Engine`."""
    if with_faults:
        raise SystemExit("--with-faults: the small bugs are written for vLLM")
    eager = {"disable_cuda_graph": True}
    found: dict[str, tuple[str, dict[str, Any]]] = {}
    for graphs, options in (("eager", eager), ("default", {})):
        for backend in ("triton", "fa3", "flashmla"):
            found[f"deepseek_v2-{backend}-{graphs}"] = (
                "deepseek_v2",
                options | {"attention_backend": backend},
            )
        # The kernels of SGLang's own choice know a choice of 2,048 tokens alone.
        torch_choice = options | {"dsa_topk_backend": "torch"}
        for backend in ("flashmla_sparse", "fa3", "flashmla_kv"):
            cache = {"kv_cache_dtype": "fp8_e4m3"} if backend == "flashmla_kv" else {}
            backends = {"dsa_prefill_backend": backend, "dsa_decode_backend": backend}
            for architecture in SPARSE_MODELS:
                found[f"{architecture}-{backend}-{graphs}"] = (
                    architecture,
                    torch_choice | cache | backends,
                )
    found["kimi_linear-triton-eager"] = "kimi_linear", eager | {"attention_backend": "triton"}
    found["longcat_flash-auto-eager"] = "longcat_flash", eager
    found["deepseek_v4-auto-eager"] = (
        "deepseek_v4",
        eager | {"context_length": 4096, "page_size": 256},
    )
    return found


def ask_sglang(
    checkpoint: Path, prompts: list[list[int]], options: dict[str, Any]
) -> dict[str, Any]:
    """As `ask_vllm`, with SGLang, which records its decisions itself."""
    import sglang
    import sglang_decisions

    num_layers = json.loads((checkpoint / "config.json").read_text())["num_hidden_layers"]
    os.environ.update(sglang_decisions.ENVIRONMENT)
    sglang_decisions.ask_for_indices()
    base = sglang_decisions.OPTIONS | {
        "skip_tokenizer_init": True,
        "context_length": 1024,
        "max_total_tokens": 16384,
        "max_running_requests": 8,
        "mem_fraction_static": 0.25,
        "disable_radix_cache": True,
        "random_seed": 0,
        "page_size": 64,
    }
    engine = sglang.Engine(model_path=str(checkpoint), **(base | options))

    def answers(max_tokens: int, **more: Any) -> list[Any]:
        params = {"temperature": 0.0, "max_new_tokens": max_tokens, "ignore_eos": True}
        found = engine.generate(
            input_ids=prompts,
            sampling_params=params,
            return_logprob=True,
            return_routed_experts=True,
            **more,
        )
        return [answer["meta_info"] for answer in found]

    read = answers(1, logprob_start_len=0)
    written = answers(32)
    engine.shutdown()
    generated = [meta["output_token_logprobs"] for meta in written]
    return {
        "logprobs": [[entry[0] for entry in meta["input_token_logprobs"][1:]] for meta in read],
        "generated": [[entry[1] for entry in entries] for entries in generated],
        "generated_logprobs": [[entry[0] for entry in entries] for entries in generated],
        "decisions": [sglang_decisions.of_answer(meta, num_layers) for meta in read],
        "generated_decisions": [sglang_decisions.of_answer(meta, num_layers) for meta in written],
    }


def ask_vllm(checkpoint: Path, prompts: list[list[int]], options: dict[str, Any]) -> dict[str, Any]:
    """In a child: load vLLM.

    Returns what it says of the tokens of the prompts and of what it generates.

    And its decisions, if it can be recorded. `fault` in the options is no argument of vLLM.
    """
    import vllm_decisions
    import vllm_faults
    from vllm import LLM, SamplingParams

    from mla_harness_vllm import activate

    activate()
    if fault := options.pop("fault", ""):
        vllm_faults.install(fault)
    recorder = vllm_decisions.install()
    base = {
        "skip_tokenizer_init": True,
        "max_model_len": 1024,
        "gpu_memory_utilization": 0.1,
        "max_num_seqs": 8,
        "kv_cache_memory_bytes": 512 << 20,
        "max_num_batched_tokens": 2048,
        "enable_prefix_caching": False,
        "seed": 0,
    }
    llm = LLM(str(checkpoint), **(base | options))
    asked: list[Any] = [{"prompt_token_ids": tokens} for tokens in prompts]
    only = SamplingParams(temperature=0, max_tokens=1, detokenize=False, prompt_logprobs=0)
    read = llm.generate(asked, only, use_tqdm=False)
    more = SamplingParams(
        temperature=0, max_tokens=32, detokenize=False, logprobs=0, ignore_eos=True
    )
    written = llm.generate(asked, more, use_tqdm=False)
    generated = [answer.outputs[0] for answer in written]
    return {
        "logprobs": [
            [
                entry[token].logprob
                for entry, token in zip(answer.prompt_logprobs[1:], tokens[1:], strict=True)
            ]
            for answer, tokens in zip(read, prompts, strict=True)
        ],
        "generated": [list(answer.token_ids) for answer in generated],
        "generated_logprobs": [
            [
                entry[token].logprob
                for entry, token in zip(answer.logprobs, answer.token_ids, strict=True)
            ]
            for answer in generated
        ],
        "decisions": [
            recorder.safely(recorder.request, answer.request_id) or {} for answer in read
        ],
        "generated_decisions": [
            recorder.safely(recorder.request, answer.request_id) or {} for answer in written
        ],
        "not_recorded": recorder.problems,
    }


def start(
    name: str, case: tuple[str, dict[str, Any]], args: argparse.Namespace
) -> subprocess.Popen[bytes]:
    """The process of a case, in a session of its own, so that its engine ends with it."""
    environment = os.environ | {
        "HF_HUB_OFFLINE": "1",
        "VLLM_USE_FLASHINFER_SAMPLER": "0",
        "VLLM_LOGGING_LEVEL": "WARNING",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_DEEP_GEMM_WARMUP": "skip",
    }
    folder, options = args.checkpoints / case[0], json.dumps(case[1])
    command = [
        sys.executable,
        __file__,
        str(folder),
        str(args.out / f"{name}.json"),
        "--case",
        options,
    ]
    command += ["--engine", args.engine]
    with (args.out / f"{name}.log").open("wb") as log:
        return subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, env=environment, start_new_session=True
        )


def quantile(values: list[float], share: float) -> str:
    """A quantile of the sorted values, or a dash for none."""
    ordered = sorted(values)
    return f"{ordered[min(len(ordered) - 1, int(share * len(ordered)))]:.4f}" if ordered else "-"


def row(name: str, architecture: str, args: argparse.Namespace) -> str:
    """A line of the table: the distances of a case, or its last words."""
    found = args.out / f"{name}.json"
    if not found.is_file():
        lines = (args.out / f"{name}.log").read_text(errors="replace").strip().splitlines()
        words = [line for line in lines if "Error" in line or "error" in line] or lines
        return f"{name:58} FAILED {words[-1][:150] if words else 'no output'}"
    truth = json.loads((args.checkpoints / architecture / "prompts.json").read_text())["logprobs"]
    said = json.loads(found.read_text())
    pairs = [
        list(zip(ours, theirs, strict=True))
        for ours, theirs in zip(said["logprobs"], truth, strict=True)
    ]
    far = [abs(a - b) for sequence in pairs for a, b in sequence]
    late = [abs(a - b) for sequence in pairs for a, b in sequence[SELECTED:]]
    bad = sum(not math.isfinite(value) for value in far)
    shown = (quantile(far, 0.5), quantile(far, 0.99), quantile(late, 0.5))
    words = (
        f"{name:58} median {shown[0]}  99% {shown[1]}  past {SELECTED} {shown[2]}  not finite {bad}"
    )
    return "  ".join([words, *recorded(said)])


def recorded(found: dict[str, Any]) -> list[str]:
    """What was recorded of the decisions, by stage and layer, and what was not."""
    layers: dict[str, set[str]] = {}
    for stages in (*found.get("decisions", ()), *found.get("generated_decisions", ())):
        for stage, rows in stages.items():
            layers.setdefault(stage, set()).update(rows)
    words = [
        f"{stage} of layer {' and '.join(sorted(rows))}" for stage, rows in sorted(layers.items())
    ]
    return [*words, *(f"NOT {problem}" for problem in found.get("not_recorded", ()))]


def cache_of(architecture: str, arguments: Mapping[str, Any]) -> str:
    """The type of the latents that a case keeps, in the words of `canary logprobs`."""
    # DeepSeek V4 has no cache of another type, and takes no option.
    is_fp8 = architecture == "deepseek_v4" or "fp8" in arguments.get("kv_cache_dtype", "auto")
    return "fp8" if is_fp8 else "bf16"


def verdict(
    name: str, architecture: str, arguments: Mapping[str, Any], args: argparse.Namespace
) -> list[str]:
    """What `canary logprobs` says of the log probabilities of a case, prompts and generated
    tokens.
    """
    command = [
        sys.executable,
        "-m",
        "harness.cli.main",
        "canary",
        "logprobs",
        str(args.checkpoints / architecture),
    ]
    command += [str(args.out / f"{name}.json"), "--generated"]
    command += ["--cache", cache_of(architecture, arguments)]
    environment = os.environ | {"OMP_NUM_THREADS": "2"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    result = {0: "pass", 1: "FAIL"}.get(done.returncode, "NOT JUDGED")
    lines = [f"{name}: {result}", *(f"    {line}" for line in done.stdout.splitlines())]
    if result == "NOT JUDGED":
        lines += [f"    {line}" for line in done.stderr.splitlines()[-3:]]
    (args.out / f"{name}.verdict").write_text("\n".join(lines) + "\n")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkpoints", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--jobs", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=540.0)
    parser.add_argument("--only", default="")
    parser.add_argument("--engine", choices=["vllm", "sglang"], default="vllm")
    parser.add_argument("--with-faults", action="store_true")
    parser.add_argument("--judge", action="store_true")
    parser.add_argument("--case")
    args = parser.parse_args()
    args.checkpoints, args.out = args.checkpoints.resolve(), args.out.resolve()
    ask_engine, named = (ask_vllm, cases) if args.engine == "vllm" else (ask_sglang, sglang_cases)
    if args.case is not None:
        prompts = json.loads((args.checkpoints / "prompts.json").read_text())["sequences"]
        args.out.write_text(
            json.dumps(ask_engine(args.checkpoints, prompts, json.loads(args.case)))
        )
        return
    args.out.mkdir(parents=True, exist_ok=True)
    chosen = {name: case for name, case in named(args.with_faults).items() if args.only in name}
    waiting, running, begun = list(chosen), dict[str, subprocess.Popen[bytes]](), time.monotonic()
    while (waiting or running) and time.monotonic() - begun < args.seconds:
        while waiting and len(running) < args.jobs:
            name = waiting.pop(0)
            running[name] = start(name, chosen[name], args)
        for name in [name for name, process in running.items() if process.poll() is not None]:
            del running[name]
            print(
                f"{time.monotonic() - begun:4.0f} s  {row(name, chosen[name][0], args)}", flush=True
            )
        time.sleep(1)
    for process in running.values():
        os.killpg(process.pid, 9)
    print(
        "\n".join(
            [
                "",
                *(row(name, case[0], args) for name, case in chosen.items() if name not in waiting),
            ]
        )
    )
    for name in waiting:
        print(f"{name:58} not started")
    judged = [name for name in chosen if args.judge and (args.out / f"{name}.json").is_file()]
    with ThreadPoolExecutor(max(1, (os.cpu_count() or 2) // 2)) as pool:
        for lines in pool.map(lambda name: verdict(name, *chosen[name], args), judged):
            print("\n".join(lines), flush=True)


if __name__ == "__main__":
    main()
