#!/usr/bin/env bash
# On one GPU: judged kernels, the kernels that cheat, the tests that need a GPU, and the whole default run.
# benchmarks/gpu_judge.sh OUT [PART]...      speed: judged kernels beside those that are installed and one read of the cache
#   right: the right kernel, three seeds     cheats, loop: as in trust/     poison, gpu: tests     run: the default run
# Each part ends after its own limit, PART_SECONDS at most, and all of them after SECONDS_IN_ALL. A part's log is in OUT when
# it ends; the folders of runs are left as runs.tgz, without pages.
set -u
out=$1; shift
mkdir -p "$out"
PART_SECONDS=${PART_SECONDS:-500} SECONDS_IN_ALL=${SECONDS_IN_ALL:-3600} WORKERS=${WORKERS:-8}
runs=${RUNS:-$out/runs}
python=${PYTHON:-python3}
part() { # NAME COMMAND...: the last lines, the exit code, and the seconds
  local name=$1 start=$SECONDS seconds=$((SECONDS_IN_ALL - SECONDS)); shift
  [ "$seconds" -le "${LIMIT:-$PART_SECONDS}" ] || seconds=${LIMIT:-$PART_SECONDS}
  [ "$seconds" -ge 15 ] || { echo "== $name: left out for time"; return; }
  timeout -k 10 "$seconds" "$@" > "$out/$name.log" 2>&1
  echo "== $name: exit code $?, $((SECONDS - start)) s"
  tail -"${LINES_OF_PART:-14}" "$out/$name.log" | cut -c1-220
  tar czf "$out/runs.tgz" --exclude='*.html' -C "$(dirname "$runs")" "$(basename "$runs")" 2> /dev/null
}
for what in "${@:-speed}"; do
  case $what in
    speed) part speed "$python" -m harness.cli.main judge trust/cheats/kernels.py:right decode-kernel --speed --device cuda --out "$runs";;
    right) for seed in 5 6 7; do
      LIMIT=${RIGHT_SECONDS:-60} LINES_OF_PART=6 part "right-$seed" "$python" -m harness.cli.main judge docs/examples/deepseek_decode.py --device cuda -n "$WORKERS" --seed "$seed" --out "$runs"
    done;;
    poison) LIMIT=${TEST_SECONDS:-120} part poison "$python" -m pytest -q poison -p no:benchmark -p no:cacheprovider -x --maxfail 10 -n "$WORKERS";;
    gpu) LIMIT=${TEST_SECONDS:-120} part gpu "$python" -m pytest -q tests/gpu -p no:benchmark -p no:cacheprovider -n 2;;
    run) part run "$python" -m harness.cli.main run --device cuda -n "$WORKERS" --history none --out "$runs";;
    cheats) LINES_OF_PART=60 part cheats "$python" -m trust.cheats --device cuda;;
    loop) part loop "$python" -m trust.verdict_loop "${VERDICTS:-200}";;
  esac
done
exit 0
