#!/usr/bin/env bash
# Drawn traces against `vllm serve` of the hybrid canary on one GPU: which settings fail, and do they fail again.
#   benchmarks/gpu_hybrid_traces.sh OUT draw      each server answers 40 drawn traces; one that fails is shrunk and kept
#   benchmarks/gpu_hybrid_traces.sh OUT replay    every kept trace is taken by every server, three times
# Servers differ in graphs, prefix cache and model runner, and share the GPU. They start one after the other: a start
# measures free memory. (Batch invariance is refused: "not supported for GDN_ATTN".) KEPT holds the traces between the
# two calls. A call ends after SECONDS_IN_ALL at most, and its servers with it.
set -u
cd "$(dirname "$0")/.."
out=$1 action=$2; mkdir -p "$out"
PYTHON=${PYTHON:-python3} SECONDS_IN_ALL=${SECONDS_IN_ALL:-570} KEPT=${KEPT:-/tmp/hybrid-traces} SEED=${SEED:-90210}
TRACES=${TRACES:-40} MODEL=${MODEL:-fixtures/canary-hybrid}
mkdir -p "$KEPT"
# Each row: name, environment, options beside the common ones.
servers=(
  "eager-cache|VLLM_USE_V2_MODEL_RUNNER=1|--enforce-eager --enable-prefix-caching"
  "eager-plain|VLLM_USE_V2_MODEL_RUNNER=1|--enforce-eager --no-enable-prefix-caching"
  "eager-cache-first-runner|VLLM_USE_V2_MODEL_RUNNER=0|--enforce-eager --enable-prefix-caching"
  "graphs-cache|A=1|--enable-prefix-caching"
  "graphs-plain|A=1|--no-enable-prefix-caching"
)
[ -n "${ONLY:-}" ] && mapfile -t servers < <(printf '%s\n' "${servers[@]}" | grep -E "^($ONLY)\|")
export HF_HUB_OFFLINE=1 VLLM_USE_FLASHINFER_SAMPLER=0 VLLM_NO_USAGE_STATS=1
left() { echo $((SECONDS_IN_ALL - SECONDS)); }

. benchmarks/servers.sh
trap 'end_servers "$out"' EXIT

start_server() { # NAME PORT ENVIRONMENT OPTIONS: true if it answers
  local started=$SECONDS
  # shellcheck disable=SC2086
  env $3 setsid "$PYTHON" -m vllm.entrypoints.cli.main serve "$MODEL" --port "$2" --num-gpu-blocks-override 40 \
    --max-num-batched-tokens 128 --max-model-len 1024 --max-num-seqs 16 --gpu-memory-utilization 0.08 $4 \
    > "$out/$1.server.log" 2>&1 &
  local pid=$!
  echo "$pid" > "$out/$1.session"
  while kill -0 "$pid" 2> /dev/null && [ "$(left)" -gt 10 ] && [ $((SECONDS - started)) -lt 240 ]; do
    answers "http://127.0.0.1:$2/health" && { echo "$1: up after $((SECONDS - started)) s"; return 0; }
    sleep 1
  done
  echo "$1: not up after $((SECONDS - started)) s: $(grep -E 'Error|error' "$out/$1.server.log" | tail -1 | cut -c1-200)"; return 1
}

draw() { # NAME PORT
  local started=$SECONDS
  timeout -k 10 "$(left)" "$PYTHON" -m harness.cli.main serve-check "http://127.0.0.1:$2/v1" --fuzz "$TRACES" --seed "$SEED" \
    --tolerance 0.6 --out "$out/runs-$1" > "$out/$1.draw.log" 2>&1
  local code=$?
  find "$out/runs-$1" -name trace.yaml -exec cp {} "$KEPT/$1.yaml" \; 2> /dev/null
  echo "== draw $1: exit code $code, $((SECONDS - started)) s"
  grep -E '^(script|counters|largest|different|not shown|[0-9]+ traces|trace|taken|request|mla-harness)' "$out/$1.draw.log" | cut -c1-400
}

replay() { # NAME PORT
  local trace time
  for trace in "$KEPT"/*.yaml; do for time in 1 2 3; do
    [ "$(left)" -gt 20 ] || { echo "== left out for time: $(basename "$trace") on $1"; return; }
    local log="$out/$1.$(basename "$trace" .yaml).$time.log"
    timeout -k 10 "$(left)" "$PYTHON" -m harness.cli.main serve-check "http://127.0.0.1:$2/v1" --script "$trace" \
      --tolerance 0.6 --out "$out/runs-$1" > "$log" 2>&1
    local code=$?
    echo "== trace of $(basename "$trace" .yaml) on $1, time $time: exit code $code: $(grep '^script ' "$log" | cut -c1-300)"
  done; done
}

port=8100 jobs=()
for row in "${servers[@]}"; do
  IFS='|' read -r name environment options <<< "$row"
  port=$((port + 1))
  [ "$(left)" -gt 60 ] || { echo "$name: left out for time"; continue; }
  start_server "$name" "$port" "$environment" "$options" || continue
  "$action" "$name" "$port" > "$out/$name.$action.txt" 2>&1 & jobs+=($!)
done
for job in "${jobs[@]}"; do wait "$job"; done
cat "$out"/*."$action".txt
end_servers "$out"
(cd "$out" && tar czf "/tmp/all.$$.tar.gz" . && rm -rf ./* && mv "/tmp/all.$$.tar.gz" all.tar.gz)
cp "$KEPT"/*.yaml "$out" 2> /dev/null
exit 0
