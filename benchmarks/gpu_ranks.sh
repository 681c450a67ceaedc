#!/usr/bin/env bash
# On two GPUs: what ran too long to be judged, and on four: `four`. benchmarks/gpu_ranks.sh OUT survey|eagle|idle|sglang|four...
# Each part ends after PART_SECONDS at most and prints a short table; logs and runs go to OUT. Processes of a part share
# the GPUs: each has locks of its own (TMPDIR). PYTHONPATH names the engine: vLLM for all parts but sglang.
set -u
out=$1; shift; mkdir -p "$out"
PYTHON=${PYTHON:-python3} PART_SECONDS=${PART_SECONDS:-540}
adapters=$(printf ":%s" "$PWD"/adapters/*/)
export PYTHONPATH="$PWD:$PWD/poison$adapters${PYTHONPATH:+:$PYTHONPATH}"
export NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1 NVSHMEM_DISABLE_NVLS=1 COLUMNS=400
run() { # NAME SELECTOR-OR-OPTION...: cases in a process of their own, in the background
  local name=$1; shift; mkdir -p "$out/$name"
  TMPDIR=$(mktemp -d /tmp/ranks.XXXX) timeout -k 10 "$PART_SECONDS" "$PYTHON" -m harness.cli.main run "$@" --device "${DEVICE:-cuda}" -v --history none --out "$out/$name/runs" > "$out/$name/log" 2>&1 &
}
table() { # NAME...: the verdicts of these processes
  for name in "$@"; do echo "-- $name"; grep -aE '^ *(PASS|FAIL|CRASH|SKIP|KNOWN|pass|fail|crash|skip|known) |^(FAIL|CRASH|ERROR)|(pass|fail|skip|crash|known).* in [0-9.]+ s|refused' "$out/$name/log" | cut -c1-260 | head -"${LINES_OF_PART:-24}"; done
}
idle() { # NAME OPTION...: data-parallel ranks, one of them idle
  timeout -k 10 "$PART_SECONDS" "$PYTHON" benchmarks/idle_rank.py "$out/idle-$1" "${@:2}" > "$out/idle-$1.log" 2>&1; echo "exit code $?" >> "$out/idle-$1.log"
}
# The last nine of vllm-survey-ranks, in its order.
SURVEY='vllm-survey-ranks[ranks='
LEFT=(
  "${SURVEY}heads,canary=mla,backend=FLASH_ATTN_MLA,graph=default]"
  "${SURVEY}experts,canary=moe,backend=FLASH_ATTN_MLA,graph=full]"
  "${SURVEY}heads,canary=hybrid,backend=TRITON_MLA,graph=full]"
  "${SURVEY}experts,canary=moe,backend=TRITON_MLA,graph=none]"
  "${SURVEY}context,canary=moe,backend=TRITON_MLA,graph=full_and_piecewise]"
  "${SURVEY}heads,canary=moe,backend=FLASHMLA,graph=full_and_piecewise]"
  "${SURVEY}stages,canary=moe,backend=TRITON_MLA,graph=default]"
  "${SURVEY}stages,canary=hybrid,backend=FLASHMLA,graph=full]"
  "${SURVEY}experts,canary=moe,backend=FLASH_ATTN_MLA,graph=full_and_piecewise]"
)
for what in "$@"; do
  start=$SECONDS
  case $what in
    survey) for n in 0 1 2; do run "survey$n" "${LEFT[n]}" "${LEFT[n + 3]}" "${LEFT[n + 6]}" -m nightly; done; wait; table survey0 survey1 survey2;;
    eagle) run eagle vllm-eagle-drafts --with-faults -m nightly -n 6 --per-gpu 4; wait; table eagle;;
    idle)
      idle moe-eager --canary moe --runner v1 --backend TRITON_MLA --poison kv.new,output,lse,workspace:nan &
      idle moe-graphs --canary moe --runner v2 --graph full_decode_only &
      idle mtp --canary mtp --runner v2 --graph full_decode_only &
      wait; tail -n 32 "$out"/idle-*.log | cut -c1-230;;
    four)
      idle four --ranks 4 --canary moe --runner v2 --graph full_decode_only &
      for n in heads heads-last-rank context context-graphs stages experts drafts; do run "four-$n" "vllm-ranks-of-four[ranks=$n]" -m nightly; done
      wait; table four-heads four-heads-last-rank four-context four-context-graphs four-stages four-experts four-drafts; tail -n 32 "$out/idle-four.log" | cut -c1-230;;
    sglang) for n in heads experts; do run "sglang-$n" "sglang-ranks[ranks=$n*]" -m nightly; done; wait; table sglang-heads sglang-experts;;
  esac
  echo "== $what: $((SECONDS - start)) s"
done
exit 0
