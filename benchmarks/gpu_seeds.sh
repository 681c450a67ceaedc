#!/usr/bin/env bash
# The five seed bugs injected into vLLM on one GPU, again and again: who sees each, what is blamed, and the verdict.
#   benchmarks/gpu_seeds.sh OUT [alone|beside]...      (default: alone)
# Each word is one repetition: alone on the machine, or beside other loads (a busy process for each core, and one that
# keeps the GPU busy). The five cases run with the bug and without it, four at a time; the blame is searched for by trials.
# A call lasts SECONDS_IN_ALL at most: a repetition that would not fit is left out, and said. Runs stay in RUNS, so the
# table has the repetitions of earlier calls too. OUT gets table.txt and seeds.tar.gz (logs, results and blames).
# WHOLE=1 runs all cases of their scenarios. SELECTED, DEVICE and WORKERS are for a trial without a GPU.
set -u
cd "$(dirname "$0")/.."
out=$1; shift; mkdir -p "$out"
PYTHON=${PYTHON:-python3} DEVICE=${DEVICE:-cuda} WORKERS=${WORKERS:-4} RUNS=${RUNS:-reports/gpu-seeds}
SECONDS_IN_ALL=${SECONDS_IN_ALL:-570}
adapters=$(printf ":%s" "$PWD"/adapters/*/)
export PYTHONPATH="$PWD:$PWD/poison$adapters${PYTHONPATH:+:$PYTHONPATH}" COLUMNS=200
mkdir -p "$RUNS"
cases=('vllm-kv-cache-full[backend=FLASH_ATTN_MLA]' 'vllm-fp8-decode-graphs[graph=full]' 'vllm-mixed-context[backend=FLASHMLA]'
  'vllm-mrv2-capture[graph=full]' 'vllm-expert-ids[routing=simulated]')
[ "${WHOLE:-0}" = 1 ] && cases=(vllm-kv-cache-full vllm-fp8-decode-graphs vllm-mixed-context vllm-mrv2-capture vllm-expert-ids)
[ -n "${SELECTED:-}" ] && cases=("$SELECTED")

loads=()
begin_loads() {
  for _ in $(seq "$(nproc)"); do "$PYTHON" -c 'while True: pass' & loads+=($!); done
  # Two GiB and matrix products without an end: the engine shares the GPU's time.
  [ "$DEVICE" = cuda ] && { "$PYTHON" -c 'import torch
a = torch.randn(16384, 16384, device="cuda", dtype=torch.bfloat16)
while True: torch.mm(a, a); torch.cuda.synchronize()' & loads+=($!); }
}
end_loads() { [ ${#loads[@]} -gt 0 ] && kill "${loads[@]}" 2> /dev/null; loads=(); }
trap end_loads EXIT

longest=0
for load in "${@:-alone}"; do
  number=$(($(find "$RUNS" -mindepth 1 -maxdepth 1 -type d | wc -l) + 1))
  left=$((SECONDS_IN_ALL - SECONDS)) started=$SECONDS place=$RUNS/$(printf '%02d' "$number")-$load
  if [ "$left" -lt $((longest + 20)) ]; then echo "left out: $load ($left s left; the longest took $longest s): call again"; continue; fi
  mkdir -p "$place"
  [ "$load" = beside ] && begin_loads
  timeout -k 10 "$left" "$PYTHON" -m harness.cli.main run "${cases[@]}" --with-faults --device "$DEVICE" -n "$WORKERS" \
    --history none --out "$place/runs" > "$place/log" 2>&1
  code=$? spent=$((SECONDS - started))
  end_loads
  [ "$spent" -gt "$longest" ] && longest=$spent
  echo "exit code $code, $spent s" | tee "$place/end"
done

"$PYTHON" - "$RUNS" > "$out/table.txt" <<'END'
import json, pathlib, sys

rows, counts = [], {}
for place in sorted(path for path in pathlib.Path(sys.argv[1]).iterdir() if path.is_dir()):
    for run in sorted((place / "runs").glob("*/run.json")):
        faults = run.with_name("faults.jsonl")
        judged = [json.loads(line) for line in faults.read_text().splitlines()] if faults.exists() else []
        found = {(one["fault"], one["case"]): one for one in judged}
        for control in json.loads(run.read_text())["controls"]:
            one = found.get((control["use"]["name"], control["job"]["case"]["id"]))
            verdict = "not judged" if one is None else "caught" if one["caught"] else "WRONG BLAME" if one["seen"] else "MISSED"
            counts[verdict] = counts.get(verdict, 0) + 1
            by, blamed, seconds = ("", "", 0.0) if one is None else (one["by"], one["blamed"], one["seconds"])
            rows.append((control["use"]["name"], place.name, ", ".join(by) or "nothing", ", ".join(blamed) or "no site",
                         verdict, f"{seconds:.0f}"))
rows.sort()
head = ("seed", "repetition", "seen by", "blamed", "verdict", "s")
widths = [max(len(row[place]) for row in (head, *rows)) for place in range(len(head))]
for row in (head, *rows):
    print("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())
others = ", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items()) if verdict != "caught")
print(f"{counts.get('caught', 0)} of {len(rows)} caught" + (f"; {others}" if others else ""))
END
cat "$out/table.txt"
grep -hE '^(FAIL|CRASH|ERROR|MISSED|WRONG BLAME|skipped)|harness:' "$RUNS"/*/log | cut -c1-240 | sort | uniq -c | sort -rn | head -20
tar -czf "$out/seeds.tar.gz" -C "$RUNS" $(cd "$RUNS" && find . \( -name log -o -name end -o -name '*.jsonl' -o -name run.json \) -not -path '*/accuracy/*')
exit 0
