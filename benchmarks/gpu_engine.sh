#!/usr/bin/env bash
# Every engine case of a plain run once on one GPU, and what of ours is large there. No vLLM needed.
#   benchmarks/gpu_engine.sh OUT [engine|plugin|pools]...      (default: all three, 8 minutes at most)
# engine: all cases of the reference engine. plugin: the same with docs/examples/deepseek_decode.py. pools: decode-conditions,
# whose pools with 2^31 elements from page to page are mapped where they do not fit.
# Each part ends after its seconds (ENGINE_SECONDS, PLUGIN_SECONDS, POOLS_SECONDS); the cases come in drawn order, so a part
# that is cut is a sample, and the summary says how many are left. OUT gets summary.txt and engine.tar.gz.
# DEVICE=cpu and SELECTED try the script without a GPU.
set -u
cd "$(dirname "$0")/.."
out=$1; shift; mkdir -p "$out"
PYTHON=${PYTHON:-python3} DEVICE=${DEVICE:-cuda} WORKERS=${WORKERS:-12}
adapters=$(printf ":%s" "$PWD"/adapters/*/)
export PYTHONPATH="$PWD:$PWD/poison$adapters${PYTHONPATH:+:$PYTHONPATH}" COLUMNS=200 OMP_NUM_THREADS=1
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
where=(--device "$DEVICE"); [ "$DEVICE" = cuda ] && where+=(--per-gpu "$WORKERS")

part() { # NAME SECONDS WORDS...: one run, cut after SECONDS
  local name=$1 seconds=$2 started=$SECONDS; shift 2
  timeout -k 10 "$seconds" "$PYTHON" -m harness.cli.main run "$@" "${where[@]}" -n "$WORKERS" -q --sample 1000000 --seed 0 \
    --history none --timeout 120 --out "$work/$name" > "$work/$name.log" 2>&1
  echo "$name: exit code $?, $((SECONDS - started)) s" | tee -a "$work/ends"
}
[ $# -gt 0 ] || set -- engine plugin pools
for name in "$@"; do
  case $name in
    engine) part engine "${ENGINE_SECONDS:-200}" ${SELECTED:--m engine};;
    plugin) part plugin "${PLUGIN_SECONDS:-200}" ${SELECTED:--m engine} --plugin docs/examples/deepseek_decode.py;;
    pools) part pools "${POOLS_SECONDS:-60}" ${SELECTED:-decode-conditions};;
  esac
done

"$PYTHON" - "$work" > "$out/summary.txt" <<'END'
import collections, json, pathlib, sys

work = pathlib.Path(sys.argv[1])
print((work / "ends").read_text().rstrip())
for plan in sorted(work.glob("*/*/run.json")):
    name, file = plan.parts[-3], plan.with_name("results.jsonl")
    results = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    planned = len(json.loads(plan.read_text())["jobs"])
    counts = collections.Counter(one["verdict"] for one in results)
    words = ", ".join(f"{counts[word]} {word}" for word in ("pass", "fail", "crash", "error", "known", "skip") if counts[word])
    left = planned - len(results)
    print(f"== {name}: {words or 'nothing ran'}" + (f", {left} left of {planned}" if left else ""))
    bad = collections.defaultdict(list)
    for one in results:
        if one["verdict"] in ("fail", "crash", "error", "skip"):
            first = one["findings"][0] if one["findings"] else {}
            why = (first.get("message") or one["reason"]).split(" (pattern")[0][:200]
            bad[one["verdict"], first.get("oracle", ""), first.get("at") or one["at"], why].append(one["id"])
    for (verdict, oracle, at, why), cases in sorted(bad.items(), key=lambda pair: (pair[0][0] == "skip", -len(pair[1])))[:30]:
        print(f"{verdict.upper() if verdict != 'skip' else verdict} {len(cases)} {oracle} {why}" + (f" | {at}" if at else ""))
        if verdict != "skip":
            print("     " + " ".join(cases[:4]))
END
cut -c1-400 "$out/summary.txt"
tar -czf "$out/engine.tar.gz" -C "$work" $(cd "$work" && find . -name "*.log" -o -name results.jsonl -o -name blame.jsonl)
exit 0
