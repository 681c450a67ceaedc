#!/usr/bin/env bash
# An SGLang release on one machine with GPUs: what its pages say, run again.   benchmarks/gpu_sglang.sh OUT PART...
# Parts, which may run at the same time on GPUs of their own (CUDA_VISIBLE_DEVICES):
#   served       its served canaries as released and with each bug injected; GROUP=memory|padded chooses half of them, radix one
#   drafts, sparse, ranks (two GPUs), survey     the nightly scenarios
#   kernels      every cell of the kernel matrix with a kernel of SGLang
#   reproductions    the plain script of finding 12
#   traces       two scripts and drawn traces against servers; a failing one is taken by every server, three times
#                SERVERS="triton-eager flashmla-graphs" chooses some of them
#   kit          SGLang's own attention suite, plainly and under poison
#   decays       finding 30: a random Kimi Linear as released, and with `fuse_diagonal=False` as longer prefills have; MADE too
#   checkpoints  random checkpoints beside transformers: CHECKPOINTS="deepseek_v2 deepseek_v32" are made, or MADE is a folder
#                that has them; ONLY chooses the cases
# Each part ends after PART_SECONDS. Lines go to OUT/PART.txt, logs and runs to OUT/PART. PYTHONPATH names SGLang.
set -u
cd "$(dirname "$0")/.."
out=$(realpath -m "$1"); shift; mkdir -p "$out"
PYTHON=${PYTHON:-python3} PART_SECONDS=${PART_SECONDS:-480} DEVICE=${DEVICE:-cuda} JOBS=${JOBS:-6}
adapters=$(printf ":%s" "$PWD"/adapters/*/)
export PYTHONPATH="$PWD:$PWD/poison$adapters${PYTHONPATH:+:$PYTHONPATH}" HF_HUB_OFFLINE=1 COLUMNS=300
export NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1 NVSHMEM_DISABLE_NVLS=1
left() { echo $((PART_SECONDS - SECONDS)); }
harness() { timeout -k 10 "$(left)" "$PYTHON" -m harness.cli.main "$@"; }
cases() { # SELECTOR-OR-OPTION...: run them, and say each verdict
  local started=$SECONDS
  harness run "$@" --device "$DEVICE" -n "$JOBS" --per-gpu "$JOBS" -v --history none --out "$work/runs" > "$work/log" 2>&1
  echo "run $*: exit code $?, $((SECONDS - started)) s"
  grep -aE '^ *(PASS|FAIL|CRASH|SKIP|KNOWN|ERROR|pass|fail|crash|skip|known|error) |(pass|fail|skip|crash|known).* in [0-9.]+ s|refused|^mla-harness' "$work/log" | cut -c1-260 | head -60
}

. benchmarks/servers.sh
start_server() { # NAME PORT OPTIONS: true once it answers
  local started=$SECONDS
  # shellcheck disable=SC2086
  SGLANG_ENABLE_JIT_DEEPGEMM=false setsid "$PYTHON" -m sglang.launch_server --model-path fixtures/canary-mla --port "$2" --dtype bfloat16 \
    --context-length 1024 --chunked-prefill-size 128 --max-running-requests 16 --max-total-tokens 2560 --mem-fraction-static 0.6 \
    --page-size 64 --sampling-backend pytorch --grammar-backend none --disable-flashinfer-autotune --enable-metrics --random-seed 0 $3 \
    > "$work/$1.server.log" 2>&1 &
  local pid=$!
  echo "$pid" > "$work/$1.session"
  while kill -0 "$pid" 2> /dev/null && [ "$(left)" -gt 10 ]; do
    answers "http://127.0.0.1:$2/health" && { echo "$1: up after $((SECONDS - started)) s"; return 0; }
    sleep 1
  done
  echo "$1: not up after $((SECONDS - started)) s: $(grep -E '[A-Za-z]*(Error|Exception)\b' "$work/$1.server.log" | tail -1 | cut -c1-240)"; return 1
}
check() { # NAME PORT LABEL OPTIONS...: one serve-check, and its lines
  local name=$1 port=$2 label=$3 started=$SECONDS; shift 3
  [ "$(left)" -gt 20 ] || { echo "$name $label: left out for time"; return; }
  harness serve-check "http://127.0.0.1:$port/v1" "$@" --tolerance 0.6 --out "$work/runs-$name" > "$work/$name.$label.log" 2>&1
  echo "$name $label: exit code $?, $((SECONDS - started)) s"
  grep -aE '^(script|counters|largest|different|not shown|[0-9]+ traces|trace|taken|request|mla-harness)' "$work/$name.$label.log" | cut -c1-300 | sed 's/^/      /'
}
traces() {
  local eager="--cuda-graph-backend-decode disabled --cuda-graph-backend-prefill disabled" row name port options trace time script drawing=""
  local servers=(
    "flashmla-graphs|24101|--attention-backend flashmla"
    "flashmla-eager|24102|--attention-backend flashmla $eager"
    "flashmla-eager-no-cache|24103|--attention-backend flashmla --disable-radix-cache $eager"
    "triton-eager|24104|--attention-backend triton $eager"
  )
  # The folder of this part: a later part has another.
  trap "end_servers '$work'" EXIT
  for row in "${servers[@]}"; do
    IFS='|' read -r name port options <<< "$row"
    case " ${SERVERS:-$name} " in *" $name "*) ;; *) continue;; esac
    start_server "$name" "$port" "$options" || continue
    touch "$work/$name.up"
    (for script in cache-reuse lengths; do check "$name" "$port" "$script" --script "$script"; done
     check "$name" "$port" fuzz --fuzz "${TRACES:-40}" --seed "${SEED:-2}" --shrink-seconds 40
     find "$work/runs-$name" -name trace.yaml -exec cp {} "$work/$name.yaml" \; 2> /dev/null) > "$work/$name.txt" &
    drawing="$drawing $!"
  done
  # shellcheck disable=SC2086
  wait $drawing; cat "$work"/*.txt
  for trace in "$work"/*.yaml; do [ -e "$trace" ] || continue
    for row in "${servers[@]}"; do IFS='|' read -r name port options <<< "$row"
      [ -e "$work/$name.up" ] && for time in 1 2 3; do check "$name" "$port" "trace-of-$(basename "$trace" .yaml)-$time" --script "$trace"; done
    done
  done
  end_servers "$work"
}
kit() {
  local mode options
  for mode in plain poison; do
    options=(); [ $mode = poison ] && options=(-p torch_poison.pytest_plugin --poison nan)
    PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 timeout -k 10 "$(left)" "$PYTHON" -m pytest benchmarks/sglang_attention_kit.py -p no:cacheprovider -W default -v -rfEs "${options[@]}" > "$work/$mode.log" 2>&1
    echo "kit $mode: exit code $?: $(tail -n 1 "$work/$mode.log" | cut -c1-200)"
    grep -aE '^(FAILED|ERROR|SKIPPED)|passes on uninitialised memory|holds uninitialised memory' "$work/$mode.log" | cut -c1-300 | sort | uniq -c | sort -rn | head -30
  done
}
reproductions() {
  timeout -k 5 100 "$PYTHON" docs/upstream/sglang-skipped-rows/script.py > "$work/sglang-skipped-rows.log" 2>&1
  echo "sglang-skipped-rows: exit code $?"; tail -n 8 "$work/sglang-skipped-rows.log" | cut -c1-240 | sed 's/^/      /'
}
checkpoints() {
  local name
  if [ -z "${MADE:-}" ]; then
    for name in ${CHECKPOINTS-deepseek_v2}; do harness canary random "$name" --quick --out "$work/made/$name" 2>&1 | tail -2; done
  fi
  timeout -k 10 "$(left)" "$PYTHON" benchmarks/random_checkpoints.py "${MADE:-$work/made}" "$work/said" --engine sglang --only "${ONLY:-deepseek_v2}" --jobs 6 --seconds "$(($(left) - 10))" 2>&1 | grep -aE 'median|FAILED' | cut -c1-240
}
decays() {
  local kda
  kda=$("$PYTHON" -c 'import importlib.util as u; print(u.find_spec("sglang").submodule_search_locations[0])')/kernels/ops/attention/fla/kda.py
  cp "$kda" "$work/released.py"
  # The changed one comes first: a cold start takes minutes, and time may end.
  sed -i 's/fuse_diagonal=_small_grid/fuse_diagonal=False/' "$kda"
  diff "$work/released.py" "$kda" && echo "decays: nothing was changed in $kda"
  CHECKPOINTS=kimi_linear ONLY=kimi_linear checkpoints; mv "$work/said" "$work/said-changed"
  cp "$work/released.py" "$kda"
  CHECKPOINTS="" ONLY=kimi_linear checkpoints; mv "$work/said" "$work/said-released"
}
for what in "$@"; do
  SECONDS=0 work=$out/$what${GROUP:+-$GROUP}; mkdir -p "$work"
  {
    case $what-${GROUP:-} in
      served-padded) cases sglang-padded-lengths sglang-padded-rows sglang-radix-cache --with-faults;;
      served-radix) cases sglang-radix-cache --with-faults;;
      served-*) cases sglang-free-memory sglang-flashmla-plans --with-faults;;
      drafts-*) cases sglang-drafts --with-faults -m nightly;;
      sparse-*) cases sglang-sparse-recall -m nightly;;
      ranks-*) JOBS=1 cases sglang-ranks -m nightly;;
      kernels-*)
        # Its choice takes 2,048 positions of a row, and no cell of the matrix asks for as many.
        cases select-topk --kernel sglang-fast-topk --set topk=2048 --set 'seq_lens=[100,2047,2048,2049,6000]'
        cases 'kernel-matrix-*[kernel=sglang*]' -m kernel-matrix --timeout 200;;
      survey-*) harness survey sglang --per-gpu "$JOBS" -n "$JOBS" --seconds 60 --out "$work/runs" 2>&1 | tail -40 | cut -c1-220;;
      traces-*|kit-*|reproductions-*|checkpoints-*|decays-*) "$what";;
      *) echo "unknown part $what";;
    esac
    echo "== $what${GROUP:+ $GROUP}: $SECONDS s"
  } > "$out/$what${GROUP:+-$GROUP}.txt" 2>&1
  cat "$out/$what${GROUP:+-$GROUP}.txt"
done
exit 0
