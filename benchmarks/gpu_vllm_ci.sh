#!/usr/bin/env bash
# vLLM's own MLA tests as they are, then under poison with VLLM_RAISE_ON_LOGIT_NANS=1: what turns red, and what it costs.
#   bash benchmarks/gpu_vllm_ci.sh TESTS OUT
# TESTS is the folder `tests` of vLLM's sdist or checkout. FILES, SECONDS_EACH and SERVED change what runs; SERVED="" serves nothing.
set -u
cd "$(dirname "$0")/.."
TESTS=$(realpath "$1") OUT=${2:-reports/gpu-vllm-ci}; mkdir -p "$OUT"; OUT=$(realpath "$OUT")
PYTHON=${PYTHON:-python3} SECONDS_EACH=${SECONDS_EACH:-45} SERVED=${SERVED-vllm-padded-activations}
attention=kernels/attention/test
given=(${attention}{_triton_decode_attention,_merge_attn_states,_mla_cross_layer_kernel_equivalence,_triton_mla_causal_verify_flatten}.py
  ${attention}{_flashmla_sparse,_flashmla}.py v1/attention/test_{mla_context_chunks,indexer_native_next_n}.py kernels/test_top_k_per_row.py)
FILES=${FILES:-${given[*]}}
root=$PWD work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
# The conftest.py at the top of vLLM's tests loads models: left out.
for file in $FILES kernels/{__init__,utils,allclose_default,quant_utils,conftest}.py; do
  mkdir -p "$work/tests/$(dirname "$file")"; cp "$TESTS/$file" "$work/tests/$file" 2>/dev/null
done
touch "$work"/tests/{,kernels/,kernels/attention/,v1/,v1/attention/}__init__.py 2>/dev/null
adapters=$(printf ":%s" "$root"/adapters/*/)
export PYTHONPATH="$work:$root:$root/poison$adapters${PYTHONPATH:+:$PYTHONPATH}" PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 COLUMNS=250
cd "$work"
count() { grep -Eo ' (PASSED|FAILED|SKIPPED|ERROR) ' "$1" | sort | uniq -c | awk '{print tolower($2), $1}' | paste -sd, ; }

: > "$OUT/summary.txt"
for file in $FILES; do
  name=$(basename "$file" .py)
  for mode in plain poison; do
    log=$OUT/$name-$mode.log options=() started=$SECONDS
    [ $mode = poison ] && options=(-p torch_poison.pytest_plugin --poison nan)
    VLLM_RAISE_ON_LOGIT_NANS=$([ $mode = poison ] && echo 1 || echo 0) timeout -k 5 "$SECONDS_EACH" \
      "$PYTHON" -m pytest -v -p no:cacheprovider --rootdir "$work" "${options[@]}" "tests/$file" > "$log" 2>&1
    code=$?
    echo "$name $mode: exit $code, $(count "$log") in $((SECONDS - started)) s$([ $code = 124 ] && echo ', cut')" | tee -a "$OUT/summary.txt"
  done
  grep -hE 'passes on uninitialised memory|holds uninitialised memory' "$OUT/$name-poison.log" | sort | uniq -c | sort -rn | head -n 3 | cut -c1-220
done
cd "$root"
for raise in ${SERVED:+0 1}; do
  started=$SECONDS
  VLLM_RAISE_ON_LOGIT_NANS=$raise timeout -k 5 200 "$PYTHON" -m harness.cli.main run "$SERVED" --device cuda --sample 1 -q \
    --history none --out "$OUT/runs" > "$OUT/served-$raise.log" 2>&1
  echo "served, VLLM_RAISE_ON_LOGIT_NANS=$raise: exit $?, $(tail -n 1 "$OUT/served-$raise.log" | cut -c1-150) in $((SECONDS - started)) s" | tee -a "$OUT/summary.txt"
done
exit 0
