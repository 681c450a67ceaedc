#!/usr/bin/env bash
# On one GPU: kernels at a fence, behind a slow predecessor or a held producer, and a sample under compute-sanitizer.
# benchmarks/gpu_time.sh OUT [twins|fence-after|fence-before|predecessor|stream-twins|streams|memcheck|racecheck|synccheck]...
# Each part ends with a table after PART_SECONDS at most; logs and runs go to OUT. WORKERS share the GPU.
set -u
out=$1; shift
mkdir -p "$out"
WORKERS=${WORKERS:-12} PART_SECONDS=${PART_SECONDS:-140} MARK=${MARK:-kernel-matrix}
device="--device ${DEVICE:-cuda}"; [ "${DEVICE:-cuda}" = cuda ] && device="$device --per-gpu $WORKERS"
harness() { timeout -k 10 "$PART_SECONDS" "${PYTHON:-python3}" -m harness.cli.main "$@"; }
part() { # NAME COMMAND...: the last lines, the exit code, and the seconds
  local name=$1 start=$SECONDS; shift
  "$@" > "$out/$name.log" 2>&1
  echo "== $name: exit code $?, $((SECONDS - start)) s"
  grep -E '^(FAIL|CRASH|ERROR|  ordered|  sentinel|  finite|  reference|  crash|  sanitizer)|(pass|fail|skip|crash).* in [0-9.]+ s|cases after|^skipped' "$out/$name.log" | cut -c1-240 | tail -${LINES_OF_PART:-14}
}
matrix() { part "$1" harness run -m "$MARK" $device -n "$WORKERS" --history none --out "$out/$1" --set "$2" --sample "${SAMPLE:-1500}" --seed "$3"; }
for what in "${@:-twins}"; do
  case $what in
    twins)
      twins="--plugin tests/gpu/early_kernels.py $device --out $out/runs -n 2"
      for kernel in early-waits early-reads early-overreads; do
        part "$kernel" harness run merge-kernel $twins --kernel $kernel
        part "$kernel-predecessor" harness run merge-kernel $twins --kernel $kernel --set predecessor=slow
        part "$kernel-fence" harness run merge-kernel $twins --kernel $kernel --set fence=after
      done;;
    fence-after) matrix "$what" fence=after 0;;
    fence-before) matrix "$what" fence=before 1;;
    stream-twins)
      kernels=$(printf ' --kernel %s' side-waits side-reads side-leaves host-waits host-rewrites)
      part "$what" harness run merge-kernel --plugin tests/gpu/stream_kernels.py $device --out "$out/runs" -n 4 $kernels --set streams=delayed
      part "held-producer" "${PYTHON:-python3}" -m pytest -q tests/gpu/test_delayed_streams.py;;
    streams) matrix "$what" streams=delayed 3;;
    predecessor) matrix "$what" predecessor=slow 2;;
    memcheck|racecheck|synccheck)
      LINES_OF_PART=30 part "$what" harness run -m "$MARK" --device cuda -n "$WORKERS" --history none --out "$out/$what" --sanitizer "$what" --sample "${SANITIZED:-200}" --seed 7;;
  esac
done
exit 0
