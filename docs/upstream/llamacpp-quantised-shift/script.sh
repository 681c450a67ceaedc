#!/usr/bin/env bash
# MLA, a quantised cache and a shift of it end llama.cpp's server: script.sh LLAMA_SERVER MODEL.gguf [TYPE]
# MODEL is any DeepSeek V2 or V3 (architecture deepseek2). TYPE is q8_0 by default; with f16 all is well.
set -uo pipefail
read -ra server <<<"$1"  # a program, or a command of several words
model=$2 type=${3:-q8_0} port=${PORT:-18999}
export LD_LIBRARY_PATH=$(dirname "${server[0]}")
numbers() { seq -s, "$1" "$2"; }

try() {  # NAME, PROMPT, PROMPT, OPTIONS OF THE SERVER...
  local name=$1 first=$2 second=$3
  shift 3
  "${server[@]}" -m "$model" --host 127.0.0.1 --port "$port" --device none -ngl 0 -t 1 -np 1 -fa on -ctk "$type" -ctv "$type" "$@" \
    >"/tmp/$name.log" 2>&1 &
  local process=$!
  until curl -sf "127.0.0.1:$port/health" >/dev/null; do kill -0 $process || return; sleep 0.2; done
  for prompt in "$first" "$second"; do
    curl -s "127.0.0.1:$port/completion" -o /dev/null -w "$name: HTTP %{http_code}\n" \
      -d "{\"prompt\": [$prompt], \"n_predict\": ${BUDGET:-4}, \"temperature\": 0, \"ignore_eos\": true}"
  done
  sleep 1
  if kill -0 $process 2>/dev/null; then
    echo "$name: the server lives"
    kill $process
  fi
  wait $process
  echo "$name: exit code $?"
  grep -a -E 'not implemented|GGML_ASSERT|\.cpp:[0-9]+:' "/tmp/$name.log" | tail -1
}

# The middle of the second prompt was cached at another place, so its keys are moved there.
try cache-reuse "$(numbers 20 59),$(numbers 100 149),$(numbers 60 249)" "$(numbers 20 59),$(numbers 60 249)" -c 2048 --cache-reuse 16
# The answer is longer than the slot, so the first half of the cache goes and the rest is moved.
BUDGET=600 try context-shift "$(numbers 20 83)" "$(numbers 20 83)" -c 256 --context-shift
