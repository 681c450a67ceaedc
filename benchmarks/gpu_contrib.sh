#!/usr/bin/env bash
# The files of contrib/ against the installed FlashInfer, vLLM, and the FlashMLA inside vLLM: one summary line for each step.
#   bash benchmarks/gpu_contrib.sh OUT
# FLASHINFER_TESTS=DIR has FlashInfer's tests/test_helpers; without it a stand-in of their ledger is used.
# PYTHONPATH may hold the packages. STAND_INS=1 (or the name of a planted bug) tries the script on a CPU.
# STEPS names the steps, SECONDS_EACH their time limit.
set -u
cd "$(dirname "$0")/.."
OUT=${1:-reports/gpu-contrib}; mkdir -p "$OUT"; OUT=$(realpath "$OUT")
PYTHON=${PYTHON:-python3} STAND_INS=${STAND_INS:-} SECONDS_EACH=${SECONDS_EACH:-95} JOBS=${JOBS:-8}
STEPS=${STEPS:-flashmla padded-rows sparse flashinfer flashinfer-plans}
export COLUMNS=300 PYTEST_ADDOPTS="-q -rfE --tb=short -p no:cacheprovider"
root=$PWD given=${PYTHONPATH:-} work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
mkdir -p "$work"/{flashinfer/tests/{attention,test_helpers},vllm/tests/kernels/attention,flashmla/tests}
if [ -n "${FLASHINFER_TESTS:-}" ]; then cp "$FLASHINFER_TESTS"/tests/test_helpers/*.py "$work/flashinfer/tests/test_helpers/"
else cp tests/contrib/fuzz_ledger.py "$work/flashinfer/tests/test_helpers/"; fi
touch "$work"/flashinfer/tests/{,test_helpers/}__init__.py
cp contrib/flashinfer/test_*.py "$work/flashinfer/tests/attention/"
cp contrib/vllm/test_*.py "$work/vllm/tests/kernels/attention/"
cp contrib/flashmla/test_*.py "$work/flashmla/tests/"
small=()
if [ -n "$STAND_INS" ]; then
  export FLASHINFER_MLA_REJECT_DEVICE=cpu STAND_IN_BUG=${STAND_INS#1} OMP_NUM_THREADS=1; small=(--device cpu --small)
  printf 'import os, sys\nsys.path.append("%s/tests/contrib")\nimport stand_ins\nstand_ins.install(os.environ["STAND_IN_BUG"])\n' "$root" > "$work/conftest.py"
  cp "$work/conftest.py" "$work/flashmla/tests/sitecustomize.py"
fi
tests() { timeout -k 5 "$SECONDS_EACH" "$PYTHON" -m pytest --rootdir "$work" "$@"; }
say() { echo "$1: exit $2, $3" | tee -a "$OUT/summary.txt"; }

: > "$OUT/summary.txt"
for step in $STEPS; do
  log=$OUT/$step.log
  case $step in
    flashmla)
      cd "$work/flashmla/tests"
      PYTHONPATH=${STAND_INS:+$PWD:}$given timeout -k 5 "$SECONDS_EACH" "$PYTHON" test_flash_mla_dense_decoding_fp8.py "${small[@]}" > "$log" 2>&1;;
    padded-rows) cd "$work/vllm"; tests tests/kernels/attention/test_mla_decode_padded_rows.py > "$log" 2>&1;;
    sparse) cd "$work/vllm"; tests tests/kernels/attention/test_sparse_mla_pipeline.py -k "not flashinfer" > "$log" 2>&1;;
    flashinfer)
      cd "$work/flashinfer"
      PYTHONPATH=$PWD:$given tests tests/attention/test_mla_reject_or_correct.py -k "valid or shape or page_index" > "$log" 2>&1;;
    flashinfer-plans)  # each in a process of its own: one that loses the context loses no other
      cd "$work/flashinfer"; export PYTHONPATH=$PWD:$given
      tests tests/attention/test_mla_reject_or_correct.py -k corrupted_plan --collect-only 2>/dev/null | grep :: | sed "s,^flashinfer/,," > "$OUT/plans.txt"
      started=$SECONDS
      timeout -k 5 "$SECONDS_EACH" xargs -a "$OUT/plans.txt" -P "$JOBS" -I ID "$PYTHON" -m pytest --rootdir "$work" ID > "$log" 2>&1
      code=$?; PYTHONPATH=$given
      say "$step" $code "$(grep -c . "$OUT/plans.txt") calls: $(grep -Eoh '^[0-9]+ (passed|failed|skipped|error)' "$log" | sort | uniq -c | awk '{print $1, $3}' | paste -sd, ) in $((SECONDS - started)) s"
      continue;;
  esac
  say "$step" $? "$(tail -n 1 "$log" | cut -c1-200)"
done
grep -h '^FAIL' "$OUT"/*.log | sed 's/tests\/[a-z/]*//' | cut -c1-260 > "$OUT/failures.txt"
head -n 60 "$OUT/failures.txt"
