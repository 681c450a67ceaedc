#!/usr/bin/env bash
# Why LMDeploy's int8 cache loses MLA's answers, what ends its engine, and what `ignore_eos` does. One GPU, SECONDS_IN_ALL.
#   benchmarks/gpu_lmdeploy_why.sh OUT
# SITES holds site-packages, among them lmdeploy. Servers start one after another; each is asked while the next one starts.
# Lines go to OUT/why.txt at once, and all the rest to OUT/why.tgz at the end.
set -u
cd "$(dirname "$0")/.."
out=$(realpath -m "$1"); mkdir -p "$out"
PYTHON=${PYTHON:-python3} SITES=${SITES:-/tmp/lmdeploy-sites} WORK=${WORK:-/tmp/lmdeploy-why} SECONDS_IN_ALL=${SECONDS_IN_ALL:-230}
mkdir -p "$WORK"
export HF_HUB_OFFLINE=1 COLUMNS=180 PYTHONUNBUFFERED=1
own_path=${PYTHONPATH:-}
"$PYTHON" -c 'import harness.accuracy.server_dialects' || exit 2  # before the minutes of a start
left() { echo $((SECONDS_IN_ALL - SECONDS)); }
say() { echo "$(printf '%3d' "$SECONDS") $*" | tee -a "$out/why.txt"; }
told() { cut -c1-300 | sed 's/^/      /' | tee -a "$out/why.txt"; }

# Each server leads a session of its own, so that its engine's process ends with it.
end_server() { # NAME
  [ -e "$WORK/$1.session" ] || return 0
  pkill -TERM -s "$(cat "$WORK/$1.session")"; sleep 1; pkill -KILL -s "$(cat "$WORK/$1.session")"
  rm -f "$WORK/$1.session"
}
end_all() { for session in "$WORK"/*.session; do [ -e "$session" ] && end_server "$(basename "$session" .session)"; done; }
trap end_all EXIT

. benchmarks/servers.sh

start() { # NAME PORT CANARY PATH PAGE PAGES LONGEST OPTIONS
  # shellcheck disable=SC2086
  PYTHONPATH=$4:$own_path setsid "$PYTHON" -m lmdeploy serve api_server "fixtures/canary-$3" --backend pytorch --model-name "canary-$3" \
    --server-name 127.0.0.1 --server-port "$2" --session-len "$7" --max-batch-size 16 --num-gpu-blocks "$6" --cache-block-seq-len "$5" \
    --logprobs-mode raw_logprobs --log-level WARNING --eager-mode $8 > "$WORK/$1.server.log" 2>&1 &
  echo $! > "$WORK/$1.session"; echo "$SECONDS" > "$WORK/$1.started"
}

is_up() { # NAME PORT
  local started; started=$(cat "$WORK/$1.started")
  while kill -0 "$(cat "$WORK/$1.session")" 2> /dev/null && [ "$(left)" -gt 8 ]; do
    answers "http://127.0.0.1:$2/v1/models" && { say "$1: up after $((SECONDS - started)) s"; return 0; }
    sleep 0.5
  done
  say "$1: NOT UP after $((SECONDS - started)) s: $(grep -E '[A-Za-z]*(Error|Exception)\b' "$WORK/$1.server.log" | tail -1 | cut -c1-240)"
  return 1
}

front() { # NAME PORT OF_FRONT MORE
  # shellcheck disable=SC2086
  setsid "$PYTHON" benchmarks/lmdeploy_front.py "$3" "http://127.0.0.1:$2" "http://127.0.0.1:$2" $4 > "$WORK/$1.front.log" 2>&1 &
  echo $! > "$WORK/$1-front-$3.session"
  until answers "http://127.0.0.1:$3/v1/models" || [ "$(left)" -lt 8 ]; do sleep 0.3; done
}

limited() { # SECONDS NAME COMMAND...: its lines and exit code
  local seconds=$1 name=$2 started=$SECONDS code; shift 2
  [ "$seconds" -lt "$(left)" ] || seconds=$(left)
  [ "$seconds" -gt 4 ] || { say "$name: left out for time"; return; }
  timeout -k 3 "$seconds" "$@" > "$WORK/$name.log" 2>&1
  code=$?
  say "$name: exit code $code, $((SECONDS - started)) s"
  grep -v -E '^(report|$)|Warning|─|INFO' "$WORK/$name.log" | tail -12 | told
}

# What the front says of the pool of a server.
POOL_OF_MLA="--page 32 --pages 40" POOL_OF_DSA="--page 64 --pages 144 --longest 3584"

accuracy() { # NAME PORT TASK POOL: the answers of 32 questions
  front "$1" "$2" $(($2 + 500)) "$4"
  limited "${EPOCH_SECONDS:-45}" "$1-epochs" "$PYTHON" -m harness.cli.main epochs --task "$3" --model "server:http://127.0.0.1:$(($2 + 500))/v1" --epochs 1 --limit 32 --out "$WORK/runs-$1"
}

ends_and_batches() { # PORT
  local which
  limited 20 ignored-end "$PYTHON" docs/upstream/lmdeploy-ignored-end/script.py "http://127.0.0.1:$1" 0 "$QUESTION"
  # Without `--end` the scores know nothing of what `ignore_eos` forbids.
  for which in "--end 0" ""; do
    front v2 "$1" $(($1 + 500 + ${#which})) "$POOL_OF_MLA $which"
    limited 35 "fuzz${which// /-}" "$PYTHON" -m harness.cli.main serve-check "http://127.0.0.1:$(($1 + 500 + ${#which}))/v1" \
      --fuzz 5 --seed 57 --tolerance 0.6 --shrink-seconds 5 --out "$WORK/runs-v2"
  done
  # The last: it ends the engine.
  limited 60 mixed-scoring "$PYTHON" docs/upstream/lmdeploy-mixed-scoring/script.py "http://127.0.0.1:$1"
  grep -E '^[A-Za-z.]*(Error|Exception): |File .*/(agent|step_inputs)\.py' "$WORK/v2.server.log" | head -8 | told
}

# Any question of the canary's task; its answer ends after some tens of tokens.
QUESTION=$'Question: A virus infects 17 people. Every day, each infected person infects 2 others. How many people are infected after 3 days?\nAnswer:'
# The engine with one index changed: V is read with the scales of K, which it is a part of.
mkdir -p "$WORK/mended"; cp -r "$SITES/lmdeploy/lmdeploy" "$WORK/mended/"
sed -i 's/v_scales_zeros=None if len(past_key_value) == 2 else past_key_value\[3\]/v_scales_zeros=None if len(past_key_value) == 2 else past_key_value[2]/' "$WORK/mended/lmdeploy/pytorch/models/deepseek_v2.py"
say "changed lines: $(diff "$SITES/lmdeploy/lmdeploy/pytorch/models/deepseek_v2.py" "$WORK/mended/lmdeploy/pytorch/models/deepseek_v2.py" | grep -c '^>')"
# V3.2 with a bf16 cache compiles for long, so it starts with the first one.
start v32 23704 dsa "$SITES/lmdeploy:$SITES/flashmla" 64 144 3584 ""
start v2 23701 mla "$SITES/lmdeploy" 32 40 1024 ""
for script in mla-int8 topk-ties; do
  PYTHONPATH=$SITES/lmdeploy:$own_path limited 150 "$script" "$PYTHON" "docs/upstream/lmdeploy-$script/script.py"
done
up=1; is_up v2 23701 || up=0
start int8 23702 mla "$SITES/lmdeploy" 32 40 1024 "--quant-policy int8"
[ $up = 1 ] && ends_and_batches 23701
end_server v2
up=1; is_up int8 23702 || up=0
start int8-mended 23703 mla "$WORK/mended:$SITES/lmdeploy" 32 40 1024 "--quant-policy int8"
[ $up = 1 ] && accuracy int8 23702 gsm_symbolic "$POOL_OF_MLA"
end_server int8
up=1; is_up int8-mended 23703 || up=0
[ $up = 1 ] && accuracy int8-mended 23703 gsm_symbolic "$POOL_OF_MLA"
is_up v32 23704 && accuracy v32 23704 recall "$POOL_OF_DSA"
end_all
tar czf "$out/why.tgz" --exclude='*.html' --exclude=mended -C "$WORK" .
say "done"
exit 0
