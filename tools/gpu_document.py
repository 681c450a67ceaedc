"""The document that `gpu_report.py` writes: figures in, Markdown out."""

from __future__ import annotations

from typing import Any


def document(data: dict[str, Any]) -> str:
    """`docs/gpu.md` of the parts that were measured."""
    parts = [
        ("machine", _machine), ("bandwidth", _bandwidth), ("step", lambda d: _step(d, data)), ("matrix", _matrix),
        ("epochs", _epochs), ("nightly", _nightly), ("selftest", _selftest), ("containment", _containment),
        ("sanitizer", _sanitizer), ("several", _several), ("recorder", _recorder), ("first-nan", _first_nan),
        ("diagnosis", _diagnosis), ("flashmla", _flashmla), ("tests", _tests),
    ]  # fmt: skip
    origin = (
        "Written by `python tools/gpu_report.py` from `docs/gpu.json`. Its parts were measured at different "
        "times, on the GPU that a part names or else on one of the kind named first; entered there by hand are notes on how a part was run."
    )
    text = ["# On a GPU", "", origin, ""]
    for name, write in parts:
        if name not in data:
            continue
        if isinstance(data[name], dict) and "failed" in data[name]:
            text += [f"## {name}", "", "Failed: " + " ".join(str(data[name]["failed"]).split())[-300:], ""]
        else:
            text += [*write(data[name]), ""]
    return "\n".join(text).rstrip() + "\n"


def _table(head: tuple[str, ...], rows: list[tuple[Any, ...]]) -> list[str]:
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    return lines + ["| " + " | ".join(str(cell).replace("|", "\\|") for cell in row) + " |" for row in rows]


def _machine(d: dict[str, Any]) -> list[str]:
    return [f"{d['gpu']}, {d['memory_gib']} GiB, compute capability {d['capability']}; torch {d['torch']}, "
            f"CUDA {d['cuda']}, Triton {d['triton']}; {d['date']}."]  # fmt: skip


def _bandwidth(d: dict[str, Any]) -> list[str]:
    sweep = d["sweep"]
    share = sweep["sweep_gb_s"] / sweep["fill_gb_s"]
    rows: list[tuple[Any, ...]] = [
        (f"sweep of {sweep['sweep_bytes'] / 1e9:.2f} GB free", f"{sweep['sweep_gb_s']:.0f} GB/s",
         f"one `fill_` of 2 GiB: {sweep['fill_gb_s']:.0f} GB/s", f"{share:.0%}", "70 %"),
        (f"sweep of a pool with {sweep['many_blocks']} free blocks, unchanged since the last", f"{sweep['many_blocks_ms']:.2f} ms", "", "", "1 ms"),
        ("the same after a block was given and taken", f"{sweep['many_blocks_changed_ms']:.2f} ms",
         f"of it listing the blocks: {sweep['many_blocks_list_ms']:.2f} ms", "", "1 ms"),
    ]  # fmt: skip
    for dtype, scan in d["scan"].items():
        rows.append((f"scan of 1 GiB {dtype}", f"{scan['scan_gb_s']:.0f} GB/s",
                     f"`sum` of the same bytes: {scan['read_gb_s']:.0f} GB/s", f"{scan['scan_gb_s'] / scan['read_gb_s']:.0%}", "60 %"))  # fmt: skip
        rows.append(
            (
                f"the same, every element NaN: {dtype}",
                f"{scan['all_nan_gb_s']:.0f} GB/s",
                "",
                f"{scan['all_nan_gb_s'] / scan['read_gb_s']:.0%}",
                "",
            )
        )
    text = ["## Sweep and scan", "", *_table(("what", "measured", "beside it", "share", "target"), rows), "",
            "Bandwidths are medians of 30 runs between device events, queued behind other work; milliseconds are wall-clock "
            "on an idle device, the host's part included.", "", "## Decode", ""]  # fmt: skip
    decode = [
        (t["kv"], t["batch"], t["tokens"], t["heads"], f"{t['decode_us']:.0f} us", f"{t['floor_us']:.0f} us", f"{t['over_floor']:.2f}", f"{t['plan_us']:.0f} us")
        for t in d["decode"]
    ]  # fmt: skip
    return [
        *text,
        *_table(
            ("cache", "batch", "tokens", "heads", "decode", "time to read the cache once", "ratio", "plan"), decode
        ),
    ]


def _step(d: dict[str, Any], data: dict[str, Any]) -> list[str]:
    free, below = f"sweep of {d['free_bytes'] / 1e9:.2f} GB before each", "below 1.10"
    rows: list[tuple[Any, ...]] = [
        ("steps queued as a server with asynchronous scheduling does, plain", f"{d['queued_ms']:.3f} ms", "1.00", ""),
        (free, f"{d['queued_with_sweep_ms']:.3f} ms", f"{d['queued_with_sweep_ms'] / d['queued_ms']:.3f}", below),
        ("one step at a time, the device idle before each, plain", f"{d['step_ms']:.3f} ms", "1.00", ""),
        (free, f"{d['with_sweep_ms']:.3f} ms", f"{d['with_sweep_ms'] / d['step_ms']:.3f}", below),
    ]
    sanitizer = data.get("sanitizer", {})
    small, watched = sanitizer.get("plain_step", {}), sanitizer.get("watched_step", {})
    if "step_ms" in watched and "step_ms" in small:
        layers = f"{small['layers']} layer{'s' if small['layers'] > 1 else ''}, {small['tokens']} tokens"
        slower = watched["step_ms"] / small["step_ms"]
        rows.append((f"plain, of {layers}", f"{small['step_ms']:.3f} ms", "1.00", ""))
        rows.append(
            (
                "the same under compute-sanitizer initcheck" + _note(sanitizer),
                f"{watched['step_ms']:.3f} ms",
                f"{slower:.1f}",
                "",
            )
        )
    return ["## What poison costs a decode step", "", "One step is a captured graph of 16 layers of absorbed MLA with their "
            "projections, at batch 64 and 4,096 tokens of bfloat16 cache.", "",
            *_table(("step", "time", "slow-down", "target"), rows)]  # fmt: skip


def _note(d: dict[str, Any]) -> str:
    return f" ({d['note']})" if d.get("note") else ""


def _verdicts(table: dict[str, dict[str, int]]) -> list[str]:
    kinds = ("pass", "fail", "crash", "skip", "error")
    rows = [(name, *(counts.get(kind, 0) or "" for kind in kinds)) for name, counts in sorted(table.items())]
    total = {kind: sum(counts.get(kind, 0) for counts in table.values()) for kind in kinds}
    return _table(("scenario", *kinds), [*rows, ("**all**", *(total[kind] or "" for kind in kinds))])


def _bad(rows: list[dict[str, str]]) -> list[str]:
    reasons: dict[str, list[str]] = {}
    for row in rows:
        reasons.setdefault(f"{row.get('verdict', '')}: {row['reason'][:200]}", []).append(row["id"])
    return [f"- {reason} ({len(ids)}: `{ids[0]}`{', ...' if len(ids) > 1 else ''})" for reason, ids in reasons.items()]


def _matrix(d: dict[str, Any]) -> list[str]:
    return ["## Kernel matrix", "", f"{d['cases']} cases in one worker in {d['seconds']:.0f} s, the worker's start and all "
            "compilation of kernels included (target: 2,000 within 120 s).", "", *_verdicts(d["verdicts"]), *_bad(d["bad"])]  # fmt: skip


def _selftest(d: dict[str, Any]) -> list[str]:
    caught = sum(bool(fault["caught"]) for fault in d["faults"])
    rows = [
        (f["fault"], f["ref"], f["scenario"], "yes" if f["caught"] else "**no**", ", ".join(f["by"] or ()), ", ".join(f["blamed"] or ()), f["reason"] or "")
        for f in d["faults"]
    ]  # fmt: skip
    text = ["## All scenarios, clean", "", f"`mla-harness selftest --device cuda` in one worker, {d['seconds']:.0f} s in all{_note(d)}. The engine runs "
            "on captured CUDA graphs with the Triton kernels in the place of the torch ones that read device values.", "",
            *_verdicts(d["verdicts"]), "", *_bad(d["bad"])]  # fmt: skip
    if d["notes"]:
        text += ["", "Not bitwise repeatable:", "", *(f"- {note}" for note in d["notes"])]
    else:
        text += ["", "Every comparison of runs and of replays was bit for bit; no spread had to be allowed for."]
    skipped = [f"- skipped: {s['fault']}: {s['reason']}" for s in d["skipped_faults"]]
    return [*text, "", "## Faults put back", "", f"{caught} of {len(rows)} caught by the declared oracle with the declared blame.", "",
            *_table(("fault", "reference", "scenario", "caught", "by", "blamed", "why not"), rows), *skipped]  # fmt: skip


def _containment(d: list[dict[str, Any]]) -> list[str]:
    rows = [(r["kernel"], r["verdict"], " ".join(r["finding"].split())[:220], r["seconds"]) for r in d]
    return ["## Containment", "", "Kernels that break a GPU process, each between two good cases of one run.", "",
            *_table(("kernel", "verdict", "finding", "seconds"), rows)]  # fmt: skip


def _sanitizer(d: dict[str, Any]) -> list[str]:
    text = ["## compute-sanitizer", "", f"`{d['command']}`: {d['verdict']}, {d['took']:.0f} s. What it adds to the case:", ""]  # fmt: skip
    text += [f"- {' '.join(message.split())[:400]}" for message in d["findings"]] or ["- no finding of its own"]
    return [*text, "", "Its report, which is the log of the result, begins:", "", "```",
            d["report"].strip() or d["error"].strip(), "```"]  # fmt: skip


def _epochs(d: dict[str, Any]) -> list[str]:
    if not d["epochs"]:
        return ["## Five epochs", "", "Failed: " + " ".join(d["error"].split())[-300:]]
    rows = [
        (number, f"{questions:,}", f"{accuracy:.4f}", f"{epoch['tokens']:,}", f"{epoch['seconds']:.2f} s",
         f"{epoch['tokens'] / epoch['seconds']:,.0f}")
        for number, (epoch, accuracy, questions) in enumerate(
            zip(d["epochs"], d["accuracy"], d["questions"], strict=True), start=1)
    ]  # fmt: skip
    asked = sum(epoch["seconds"] for epoch in d["epochs"])
    rate = sum(epoch["tokens"] for epoch in d["epochs"]) / asked
    best = max(epoch["tokens"] / epoch["seconds"] for epoch in d["epochs"])
    return ["## Five epochs", "", f"`{d['command']}`: {sum(d['questions']):,} questions in {d['took']:.0f} s, start and compilation "
            f"of kernels included (target: 60 s); {rate:,.0f} output tokens a second while generating, {best:,.0f} in the best epoch "
            "(target: 20,000). Seconds are those in the engine, without lm-eval's grading.",
            "", *_table(("epoch", "questions", "accuracy", "output tokens", "seconds", "tokens a second"), rows),
            "", d["statement"]]  # fmt: skip


def _nightly(d: dict[str, Any]) -> list[str]:
    rows = [
        (f"`{case['id']}`", case["verdict"], f"{(case['questions'] or [0])[0]:,}",
         ", ".join(f"{value:.4f}" for value in case["accuracy"]) or " ".join(case["reason"].split())[:200],
         f"{case['baseline']:.4f}" if case["baseline"] is not None else "", f"{case['seconds']:.0f} s")
        for case in d["cases"]
    ]  # fmt: skip
    return ["## Accuracy of all questions", "", f"`mla-harness run -m nightly --device cuda -n 1`, {d['took']:.0f} s in all.", "",
            *_table(("case", "verdict", "questions", "accuracy by epoch", "baseline", "time"), rows)]  # fmt: skip


def _several(d: dict[str, Any]) -> list[str]:
    rows = [(name.removeprefix("test_").replace("_", " "), outcome.lower()) for name, outcome in d["tests"]]
    return ["## Several GPUs", "", f"`pytest tests/gpu/test_several_gpus.py` on a host with {len(d['gpus'])} x {d['gpus'][0]}, "
            f"{d['seconds']:.0f} s:", "", *_table(("what", "outcome"), rows)]  # fmt: skip


def _recorder(d: dict[str, Any]) -> list[str]:
    return [
        "## What the first-NaN recorder costs", "",
        f"`python tools/gpu_first_nan.py`: a captured decode step of {d['layers']} layers at batch {d['batch']} and "
        f"{d['tokens']:,} tokens takes {d['step_ms']:.3f} ms, with {d['scans']} scans of {d['tensors']} tensors in the graph "
        f"{d['recorded_ms']:.3f} ms: {d['ratio']:.3f} times, {'within' if d['within'] else '**above**'} the target of "
        f"{d['target']} (rounds: {', '.join(f'{ratio:.3f}' for ratio in d['ratios'])}). Without a NaN, and with one "
        f"in a row of padding, it {'said nothing' if d['clean_is_silent'] and d['padding_is_silent'] else '**spoke**'}; "
        f"with one in a live row of the input: {d['found'] or '**nothing**'}.",
    ]  # fmt: skip


def _first_nan(d: dict[str, Any]) -> list[str]:
    text = ["## Who wrote the first NaN", ""]
    if isinstance(d["rows"], dict):
        return [*text, "Failed: " + " ".join(str(d["rows"].get("failed", "")).split())[-300:]]
    rows = [
        (row["ref"], f"`{row['fault']}`", row["statement"], f"`{row['person']}`", "yes" if row["agrees"] else "**no**")
        for row in d["rows"]
    ]
    text += ["`python tools/first_nan_document.py --device cuda --json`, engine on CUDA graphs:", ""]
    return [*text, *_table(("bug", "fault", "the recorder says", "a person names", "same"), rows)]


def _diagnosis(d: list[dict[str, Any]]) -> list[str]:
    rows = [
        (f"`{row['command']}`", f"`{row['case']}`" if row["case"] else row["failed"], f"{row['steps']} of {row['trials']}",
         f"{row['seconds']:.0f} s")
        for row in d
    ]  # fmt: skip
    return ["## The smallest failing case", "", *_table(("command", "it ends at", "steps of trials", "time"), rows)]


def _flashmla(d: list[dict[str, Any]]) -> list[str]:
    rows = [
        (t["device"], t["kv"], t["batch"], t["tokens"], t["heads"], f"{t['decode_us']:.0f} us", f"{t['flashmla_us']:.0f} us",
         f"{t['over_flashmla']:.2f}")
        for t in d
    ]  # fmt: skip
    return ["## Decode beside FlashMLA", "", "`python tools/gpu_flashmla.py`, with the FlashMLA of vLLM 0.22.1, both in one process "
            "(target: 1.5 times).", "",
            *_table(("GPU", "cache", "batch", "tokens", "heads", "this project's Triton", "FlashMLA", "ratio"), rows)]  # fmt: skip


def _tests(d: dict[str, Any]) -> list[str]:
    last = d["last"][-1] if d["last"] else d["error"]
    return ["## Tests", "", f"`pytest tests/gpu tests/kernels/test_triton_cuda.py`: {last}"]
