#!/usr/bin/env bash
# On one GPU: the speed of judged kernels beside the kernels that are installed and one read of the cache, and the kernels that cheat.
# benchmarks/gpu_judge.sh OUT [speed|cheats|loop]...
# Each part ends after PART_SECONDS at most; logs and runs go to OUT.
set -u
out=$1; shift
mkdir -p "$out"
PART_SECONDS=${PART_SECONDS:-500}
python=${PYTHON:-python3}
part() { # NAME COMMAND...: the last lines, the exit code, and the seconds
  local name=$1 start=$SECONDS; shift
  timeout -k 10 "$PART_SECONDS" "$@" > "$out/$name.log" 2>&1
  echo "== $name: exit code $?, $((SECONDS - start)) s"
  tail -"${LINES_OF_PART:-14}" "$out/$name.log"
}
for what in "${@:-speed}"; do
  case $what in
    speed) part speed "$python" -m harness.cli.main judge trust/cheats/kernels.py:right decode-kernel --speed --device cuda --out "$out/runs";;
    cheats) LINES_OF_PART=60 part cheats "$python" -m trust.cheats --device cuda;;
    loop) part loop "$python" -m trust.verdict_loop "${VERDICTS:-200}";;
  esac
done
exit 0
