#!/usr/bin/env bash
# On one GPU: kernels at a fence, kernels behind a slow predecessor, and a sample of the matrix under compute-sanitizer.
# benchmarks/gpu_time.sh OUT [twins|matrix|sanitizer]...   Each part ends with a table; logs and runs go to OUT.
set -u
out=$1; shift
mkdir -p "$out"
harness() { python3 -m harness.cli.main "$@"; }
part() { # NAME COMMAND...: the last lines, the exit code, and the seconds
  local name=$1 start=$SECONDS; shift
  "$@" > "$out/$name.log" 2>&1
  echo "== $name: exit code $?, $((SECONDS - start)) s"; grep -E '^(FAIL|CRASH|  sentinel|  finite|  crash)|(pass|fail|skip|crash)( |,|$).* in [0-9.]+ s|^skipped' "$out/$name.log" | cut -c1-240 | tail -${LINES_OF_PART:-12}
}
for what in "${@:-twins}"; do
  case $what in
    twins)
      twins="--plugin tests/gpu/early_kernels.py --device cuda --out $out/runs -n 2 --per-gpu 2"
      for kernel in early-waits early-reads early-overreads; do
        part "$kernel" harness run merge-kernel $twins --kernel $kernel
        part "$kernel-predecessor" harness run merge-kernel $twins --kernel $kernel --set predecessor=slow
        part "$kernel-fence" harness run merge-kernel $twins --kernel $kernel --set fence=after
      done;;
    matrix)
      many="--out $out/runs -n 12 --per-gpu 12 --device cuda"
      part fence-after harness run -m kernel-matrix $many --set fence=after --sample "${SAMPLE:-3000}"
      part fence-before harness run -m kernel-matrix $many --set fence=before --sample "${SAMPLE:-3000}" --seed 1
      part predecessor harness run -m kernel-matrix $many --set predecessor=slow --sample "${SAMPLE:-3000}" --seed 2
      harness report "$(ls -d "$out"/runs/*/ | tail -1)" --pivot kernel/verdict | tail -60;;
    sanitizer)
      LINES_OF_PART=30 part memcheck harness run -m kernel-matrix --device cuda --out "$out/runs" -n 12 --sanitizer memcheck --sample "${SANITIZED:-200}" --seed 7;;
  esac
done
