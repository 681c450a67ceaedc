#!/usr/bin/env bash
# LMDeploy's PyTorch engine from outside, on one GPU: canaries V2, V3.2 and V3 with drafts, their caches, prefix caching,
# chunked prefill, graphs.   benchmarks/gpu_lmdeploy.sh OUT
# SITES holds site-packages: lmdeploy; flashmla (a `flash_mla` for Hopper), deepgemm and fa3 (a `flash_attn_interface`), which
# LMDeploy takes if it can import them. Each server has START_SECONDS to be up and the checks of a row end after ROW_SECONDS; all ends
# after SECONDS_IN_ALL. Lines go to OUT/summary.txt at once, and all the rest to OUT/lmdeploy.tgz, which grows meanwhile.
# ONLY="v2|v32" chooses rows. KERNELS=SECONDS runs the kernels of the adapter through the matrix in place of the servers; CASES
# chooses among them.
set -u
cd "$(dirname "$0")/.."
out=$(realpath -m "$1"); mkdir -p "$out"
PYTHON=${PYTHON:-python3} SITES=${SITES:-/tmp/lmdeploy-sites} WORK=${WORK:-/tmp/lmdeploy-run}
SECONDS_IN_ALL=${SECONDS_IN_ALL:-520} START_SECONDS=${START_SECONDS:-240} ROW_SECONDS=${ROW_SECONDS:-200} GAP=${GAP:-8}
TRACES=${TRACES:-30} SEED=${SEED:-57} QUESTIONS=${QUESTIONS:-128}
mkdir -p "$WORK"
# Each row: name | canary | kernels | tokens of a page | the server of its lone answers | checks | options.
# `-` for the lone server: the row itself, which has no prefix cache. Two rows never ask one server at once: a prompt that is
# scored beside a request that is prefilled ends LMDeploy's engine. The Triton kernels take pages of 32 for wide heads.
servers=(
  "v2|mla|triton|32|-|epochs lengths abort fuzz|--eager-mode"
  "v2-cache|mla|triton|32|v2|epochs cache-reuse preempt abort fuzz|--eager-mode --enable-prefix-caching"
  "v32|dsa|flashmla|64|-|epochs lengths abort fuzz|--eager-mode"
  "v32-deepgemm|dsa|flashmla deepgemm|64|-|epochs lengths fuzz|--eager-mode"
  "v32-without-tilelang|dsa|without-tilelang flashmla|64|-|epochs lengths|--eager-mode"
  "v32-cache-chunks|dsa|flashmla|64|v32|epochs cache-reuse preempt fuzz|--eager-mode --enable-prefix-caching --max-prefill-token-num 128"
  "v2-int8|mla|triton|32|-|epochs fuzz|--eager-mode --quant-policy int8"
  "v2-fp8|mla|triton|32|-|epochs fuzz|--eager-mode --quant-policy fp8"
  "v32-fp8|dsa|flashmla|64|-|epochs lengths fuzz|--eager-mode --quant-policy fp8"
  "v2-flashmla|mla|flashmla|64|-|epochs lengths fuzz|--eager-mode"
  "v3-drafts|mtp|flashmla fa3|64|-|epochs abort fuzz|--eager-mode --speculative-algorithm deepseek_mtp --speculative-num-draft-tokens 1"
  "v2-flashmla-graphs-cache|mla|flashmla|64|v2-flashmla|epochs cache-reuse preempt fuzz|--enable-prefix-caching"
  "v3-drafts-cache|mtp|flashmla fa3|64|v3-drafts|epochs cache-reuse fuzz|--eager-mode --enable-prefix-caching --speculative-algorithm deepseek_mtp --speculative-num-draft-tokens 1"
  "v2-chunks|mla|triton|32|-|epochs fuzz|--eager-mode --max-prefill-token-num 64"
  "v32-fp8-graphs-cache|dsa|flashmla|64|v32-fp8|epochs cache-reuse fuzz|--enable-prefix-caching --quant-policy fp8"
  "v2-flashmla-fp8|mla|flashmla|64|-|epochs|--eager-mode --quant-policy fp8"
)
# Each canary has a task of its own; recall has prompts of up to 3,080 tokens. The pool holds two such requests and a half.
declare -A task=([mla]=gsm_symbolic [dsa]=recall [mtp]=drafts) longest=([mla]=1024 [dsa]=3584 [mtp]=1280) pages=([mla]=40 [dsa]=144 [mtp]=50)
[ -n "${ONLY:-}" ] && mapfile -t servers < <(printf '%s\n' "${servers[@]}" | grep -E "^($ONLY)\|")
export HF_HUB_OFFLINE=1 COLUMNS=180
own_path=${PYTHONPATH:-}
[ -n "${KERNELS:-}" ] || "$PYTHON" -c 'import harness.accuracy.server_dialects' || exit 2  # before the minutes of a start
left() { echo $((SECONDS_IN_ALL - SECONDS)); }
say() { echo "$(printf '%3d' "$SECONDS") $*" | tee -a "$out/summary.txt"; }
pack() { tar czf "$WORK.tgz" --exclude='*.html' -C "$WORK" . && [ "$(stat -c %s "$WORK.tgz")" -lt 16000000 ] && cp "$WORK.tgz" "$out/lmdeploy.tgz"; }

. benchmarks/servers.sh
trap 'end_servers "$WORK"' EXIT

start_server() { # NAME CANARY KERNELS PAGE OPTIONS PORT
  local path=$SITES/lmdeploy kernel
  for kernel in $3; do
    case $kernel in
      triton) ;;
      # Where it cannot be imported, indices come from `bitonic_topk`.
      without-tilelang) path=$WORK/without-tilelang:$path;;
      *) path=$path:$SITES/$kernel;;
    esac
  done
  # shellcheck disable=SC2086
  PYTHONPATH=$path:$own_path setsid "$PYTHON" -m lmdeploy serve api_server "fixtures/canary-$2" --backend pytorch \
    --model-name "canary-$2" --server-name 127.0.0.1 --server-port "$6" --session-len "${longest[$2]}" --max-batch-size 16 \
    --num-gpu-blocks "${pages[$2]}" --cache-block-seq-len "$4" --logprobs-mode raw_logprobs --log-level WARNING $5 > "$WORK/$1.server.log" 2>&1 &
  echo $! > "$WORK/$1.session"
}

is_up() { # NAME PORT: true once it answers; the reason and false if it does not
  local started=$SECONDS
  while kill -0 "$(cat "$WORK/$1.session")" 2> /dev/null && [ $((SECONDS - started)) -lt "$START_SECONDS" ] && [ "$(left)" -gt 15 ]; do
    answers "http://127.0.0.1:$2/v1/models" && { touch "$WORK/$1.up"; return 0; }
    sleep 1
  done
  say "$1: NOT UP after $((SECONDS - started)) s: $(grep -E '[A-Za-z]*(Error|Exception)\b' "$WORK/$1.server.log" | tail -1 | cut -c1-240)"
  tail -3 "$WORK/$1.server.log" | cut -c1-240 | sed 's/^/      /' | tee -a "$out/summary.txt"
  return 1
}

check() { # NAME CHECK FRONT SERVER CANARY
  local log=$WORK/$1.$2.log started=$SECONDS seconds=$ROW_SECONDS code
  [ "$seconds" -lt "$(left)" ] || seconds=$(left)
  [ "$seconds" -gt 12 ] || { say "$1 $2: left out for time"; return; }
  case $2 in
    epochs) set -- "$@" epochs --task "${task[$5]}" --model "server:$3" --epochs 2 --limit "$QUESTIONS";;
    fuzz) set -- "$@" serve-check "$3" --fuzz "$TRACES" --seed "$SEED" --tolerance 0.6 --shrink-seconds 30;;
    *) set -- "$@" serve-check "$3" --script "$2" --tolerance 0.6;;
  esac
  local name=$1 what=$2; shift 5
  timeout -k 5 "$seconds" "$PYTHON" -m harness.cli.main "$@" --out "$WORK/runs-$name-$what" > "$log" 2>&1
  code=$?
  say "$name $what: exit code $code, $((SECONDS - started)) s"
  grep -E '^(script|counters|largest|different|not shown|drafts|[0-9]+ traces|trace [0-9]|epoch|accuracy|mla-harness|canary)|Error' "$log" | head -8 | cut -c1-300 | sed 's/^/      /' | tee -a "$out/summary.txt"
}

row() { # NAME CANARY PAGE LONE PORT LONE_PORT CHECKS
  local what front=$(($5 + 500))
  is_up "$1" "$5" || { touch "$WORK/$1.ended"; return; }
  if [ "$4" != "$1" ]; then
    until [ -e "$WORK/$4.ended" ] || [ "$(left)" -lt 30 ]; do sleep 1; done
    [ -e "$WORK/$4.up" ] || { say "$1: left out: $4 is not up"; return; }
  fi
  say "$1: up; $(grep -c . "$WORK/$1.server.log") lines of log"
  setsid "$PYTHON" benchmarks/lmdeploy_front.py "$front" "http://127.0.0.1:$5" "http://127.0.0.1:$6" --page "$3" --pages "${pages[$2]}" --longest "${longest[$2]}" --end 0 > "$WORK/$1.front.log" 2>&1 &
  echo $! > "$WORK/$1.front.session"
  until answers "http://127.0.0.1:$front/v1/models" || [ "$(left)" -lt 15 ]; do sleep 0.3; done
  for what in $7; do check "$1" "$what" "http://127.0.0.1:$front/v1" "http://127.0.0.1:$5" "$2"; done
  touch "$WORK/$1.ended"
  curl -s "http://127.0.0.1:$5/metrics" 2> /dev/null | grep -E '^lmdeploy:[a-z_]+(_total|_reqs|succeeded|failed)[{ ]' > "$WORK/$1.metrics.txt"
  answers "http://127.0.0.1:$5/health" || say "$1: DEAD AFTER ITS CHECKS: $(grep -E '[A-Za-z]*(Error|Exception)\b' "$WORK/$1.server.log" | tail -1 | cut -c1-240)"
}

PYTHONPATH=$SITES/lmdeploy:$own_path "$PYTHON" -c 'import torch, triton, transformers, lmdeploy
print("torch", torch.__version__, "triton", triton.__version__, "transformers", transformers.__version__, "lmdeploy", lmdeploy.__version__)' 2>&1 | tail -1 | tee -a "$out/summary.txt"
if [ -n "${KERNELS:-}" ]; then
  adapters=$(printf ":%s" "$PWD"/adapters/*/)
  # FlashMLA is not asked for: LMDeploy's own kernels are.
  export PYTHONPATH="$SITES/lmdeploy:$PWD:$PWD/poison$adapters:$own_path"
  for tag in matrix-conditions kernel-matrix; do
    timeout -k 10 "$KERNELS" "$PYTHON" -m harness.cli.main run "${CASES:-kernel-matrix-*[kernel=lmdeploy*]}" -m "$tag" --device cuda -n "${WORKERS:-6}" \
      --per-gpu "${WORKERS:-6}" --timeout 240 -q --history none --out "$WORK/kernels" > "$WORK/kernels-$tag.log" 2>&1
    say "kernels $tag: exit code $?"
    tail -25 "$WORK/kernels-$tag.log" | cut -c1-260 | tee -a "$out/summary.txt"
  done
  pack; say "done"; exit 0
fi
mkdir -p "$WORK/without-tilelang"; echo 'raise ImportError("left out")' > "$WORK/without-tilelang/tilelang.py"
(while sleep 40; do pack; done) & packing=$!
declare -A ports; port=23400 jobs=()
for given in "${servers[@]}"; do
  IFS='|' read -r name canary kernels page lone checks options <<< "$given"
  port=$((port + 1)); ports[$name]=$port
  [ "$lone" = - ] && lone=$name
  [ -n "${ports[$lone]:-}" ] || { say "$name: left out: $lone is not served"; continue; }
  [ "$(left)" -gt 90 ] || { say "$name: left out for time"; continue; }
  start_server "$name" "$canary" "$kernels" "$page" "$options" "$port"
  row "$name" "$canary" "$page" "$lone" "$port" "${ports[$lone]}" "$checks" & jobs+=($!)
  sleep "$GAP"
done
for job in "${jobs[@]}"; do wait "$job"; done
kill "$packing" 2> /dev/null
end_servers "$WORK"
pack
say "done"
exit 0
