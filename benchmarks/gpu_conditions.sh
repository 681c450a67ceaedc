#!/usr/bin/env bash
# Every installed kernel under every pair of conditions at real sizes, and how far kernels sit from their bounds.
#   OUT=DIR bash benchmarks/gpu_conditions.sh [SELECTOR…]
# Without arguments all kernel-matrix-conditions-* scenarios run. DEVICE=cpu tries the script without a GPU.
# Each step has its time limit, writes to $OUT, and does not stop the next.
set -u
cd "$(dirname "$0")/.."
OUT=${OUT:-reports/gpu-conditions} DEVICE=${DEVICE:-cuda} WORKERS=${WORKERS:-6} SEEDS=${SEEDS:-20}
MATRIX_SECONDS=${MATRIX_SECONDS:-400} MARGIN_SECONDS=${MARGIN_SECONDS:-100}
PYTHON=${PYTHON:-python3} RUNS=${RUNS:-/tmp/conditions-runs}
export OMP_NUM_THREADS=1 COLUMNS=170 PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
mkdir -p "$OUT" "$RUNS"
harness() { timeout -k 10 "$1" "$PYTHON" -m harness.cli.main "${@:2}"; }
where=(); [ "$DEVICE" = cuda ] && where=(--device cuda --per-gpu "$WORKERS")

started=$SECONDS
if [ $# -gt 0 ]; then selected=("$@"); else selected=(-m matrix-conditions); fi
harness "$MATRIX_SECONDS" run "${selected[@]}" "${where[@]}" -n "$WORKERS" -q --history none --out "$RUNS" \
  > "$OUT/matrix.log" 2>&1
echo "matrix: exit $?, $((SECONDS - started)) s" | tee "$OUT/summary.txt"
# A run that its time limit cut is reported as far as it came.
harness 60 report latest --out "$RUNS" --pivot kernel/scenario > "$OUT/verdicts.txt" 2>&1
harness 100 coverage --out "$RUNS" > "$OUT/coverage.txt" 2>&1
harness 60 report latest --out "$RUNS" --markdown > "$OUT/report.md" 2>&1
tar -czf "$OUT/run.tar.gz" -C "$RUNS" . 2>/dev/null

kernels=(mla_decode/triton context_attention/torch merge_attn_states/triton write_kv/triton quantize_fp8/triton)
for kernel in mla_decode/vllm-flashmla mla_decode/vllm-fa3 context_attention/vllm-fa3 merge_attn_states/vllm-cuda; do
  "$PYTHON" -c "import vllm" 2>/dev/null && kernels+=("$kernel")
done
started=$SECONDS
timeout -k 10 $((MARGIN_SECONDS + 60)) "$PYTHON" tests/trust/matrix_margins.py --device "$DEVICE" --seeds "$SEEDS" \
  --seconds "$MARGIN_SECONDS" $(printf -- '--kernel %s ' "${kernels[@]}") > "$OUT/margins.md" 2> "$OUT/margins.log"
echo "margins: exit $?, $((SECONDS - started)) s" | tee -a "$OUT/summary.txt"

tail -n 25 "$OUT/matrix.log" | cut -c1-200
for file in verdicts.txt coverage.txt margins.md; do
  echo "--- $file"
  head -n 60 "$OUT/$file" | cut -c1-180
done
exit 0
