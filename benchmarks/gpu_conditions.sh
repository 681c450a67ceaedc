#!/usr/bin/env bash
# Every installed kernel under every pair of conditions at real sizes, and how far kernels sit from their bounds.
#   OUT=DIR STEPS="matrix margins" bash benchmarks/gpu_conditions.sh [SELECTOR…]
# Without selectors all kernel-matrix-conditions-* scenarios run. DEVICE=cpu tries the script without a GPU.
# The cells come in drawn order (SAMPLE of them, default all), so a run that its time limit cuts is a sample.
# One run holds a GPU at a time: another `mla-harness run` waits for it, unless it has a TMPDIR of its own.
# SHARD=1/2 runs half of the cells, for one GPU of two.
# Each step has its time limit, writes to $OUT, and does not stop the next.
set -u
cd "$(dirname "$0")/.."
OUT=${OUT:-reports/gpu-conditions} DEVICE=${DEVICE:-cuda} WORKERS=${WORKERS:-12} STEPS=${STEPS:-matrix margins}
SAMPLE=${SAMPLE:-1000000} SEED=${SEED:-0} SEEDS=${SEEDS:-20} MATRIX_SECONDS=${MATRIX_SECONDS:-420} MARGIN_SECONDS=${MARGIN_SECONDS:-90}
PYTHON=${PYTHON:-python3} RUNS=${RUNS:-$OUT/runs}
adapters=$(printf ":%s" "$PWD"/adapters/*/)
export OMP_NUM_THREADS=1 COLUMNS=170 PYTHONPATH="$PWD:$PWD/poison$adapters${PYTHONPATH:+:$PYTHONPATH}"
mkdir -p "$OUT" "$RUNS"
harness() { timeout -k 10 "$1" "$PYTHON" -m harness.cli.main "${@:2}"; }
where=(); [ "$DEVICE" = cuda ] && where=(--device cuda --per-gpu "$WORKERS")
if [ $# -gt 0 ]; then selected=("$@"); else selected=(-m matrix-conditions); fi

for step in $STEPS; do
  started=$SECONDS
  case $step in
    matrix)
      harness "$MATRIX_SECONDS" run "${selected[@]}" "${where[@]}" -n "$WORKERS" -q --history none --out "$RUNS" \
        --sample "$SAMPLE" --seed "$SEED" ${SHARD:+--shard "$SHARD"} > "$OUT/matrix.log" 2>&1;;
    margins)
      kernels=(mla_decode/triton context_attention/torch merge_attn_states/triton write_kv/triton quantize_fp8/triton)
      [ "$DEVICE" = cuda ] && kernels+=(mla_decode/vllm-{flashmla,flashmla-fp8,fa3,triton} mla_decode/flashinfer-fa3 \
        context_attention/vllm-fa3 merge_attn_states/vllm-cuda index_logits/{torch,vllm-deepgemm})
      timeout -k 10 $((MARGIN_SECONDS + 30)) "$PYTHON" -m trust.arrays.matrix_margins --device "$DEVICE" --seeds "$SEEDS" \
        --jobs "$WORKERS" --seconds "$MARGIN_SECONDS" $(printf -- '--kernel %s ' "${kernels[@]}") \
        > "$OUT/margins.md" 2> "$OUT/margins.log";;
  esac
  echo "$step: exit $?, $((SECONDS - started)) s" | tee -a "$OUT/summary.txt"
done

# A run that its time limit cut is reported as far as it came.
by_kernel() { "$PYTHON" - "$RUNS" <<'END'
import collections, json, pathlib, sys
rows = collections.defaultdict(collections.Counter)
for path in pathlib.Path(sys.argv[1]).glob("*/results.jsonl"):
    for line in path.open():
        case = json.loads(line)
        kernel = case["id"].partition("kernel=")[2].partition(",")[0].rstrip("]")
        row = rows[case["scenario"].removeprefix("kernel-matrix-").removeprefix("conditions-") + "/" + kernel]
        row[case["verdict"]] += 1
        row["seconds"] += case["seconds"]
        row["longest"] = max(row["longest"], case["seconds"])
for name, row in sorted(rows.items()):
    verdicts = " ".join(f"{key} {row[key]}" for key in ("pass", "fail", "crash", "error", "skip") if row[key])
    print(f"{name:40} {verdicts:32} {row['seconds']:7.1f} s, longest {row['longest']:.1f} s")
END
}
case " $STEPS " in *" matrix "*)
  by_kernel > "$OUT/verdicts.txt" 2>&1
  harness 60 coverage --out "$RUNS" > "$OUT/coverage.txt" 2>&1
  tail -n 30 "$OUT/matrix.log" | cut -c1-300; head -n 80 "$OUT/verdicts.txt"; head -n 24 "$OUT/coverage.txt" | cut -c1-120;;
esac
case " $STEPS " in *" margins "*) head -n 60 "$OUT/margins.md" | cut -c1-180; tail -n 3 "$OUT/margins.log" | cut -c1-200;; esac
exit 0
