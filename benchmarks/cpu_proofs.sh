#!/usr/bin/env bash
# Long proofs on many cores, without a GPU and without a virtual environment.
#   OUT=DIR PYTHONPATH=DIR_OF_PYDANTIC bash benchmarks/cpu_proofs.sh [conditions|mutants|controls|tolerances]…
# A part is one function. Each command has its time limit, writes to $OUT, and does not stop the next.
#   N=400 SEEDS="1 2" errors under conditions; SECONDS_EACH=300 seconds of one command; WORKERS=cores processes.
#   MUTANTS=1000 MUTANT_SEED=SEED MUTANT_SECONDS=560 small changes of the code
#   CONTROLS=5000 CONTROL_SEEDS="1 2 3" draws on right kernels; DRAWS=2000 TOLERANCE_SEEDS=8 what right kernels need
set -u
cd "$(dirname "$0")/.."
OUT=${OUT:-reports/cpu-proofs} WORKERS=${WORKERS:-$(nproc)} SECONDS_EACH=${SECONDS_EACH:-300}
PYTHON=${PYTHON:-python3} RUNS=${RUNS:-/tmp/cpu-proofs}
N=${N:-400} SEEDS=${SEEDS:-"271828 314159"}
MUTANTS=${MUTANTS:-1000} MUTANT_SECONDS=${MUTANT_SECONDS:-560} MUTANT_SEED=${MUTANT_SEED:-20261125}
CONTROLS=${CONTROLS:-5000} CONTROL_SEEDS=${CONTROL_SEEDS:-"20261126 20261127 20261128"}
adapters=$(printf ":%s" "$PWD"/adapters/*/)
export OMP_NUM_THREADS=1 COLUMNS=170 PYTHONPATH="$PWD:$PWD/poison$adapters${PYTHONPATH:+:$PYTHONPATH}"
mkdir -p "$OUT" "$RUNS"
command_line() { timeout -k 10 "$SECONDS_EACH" "$PYTHON" -m harness.cli.main "$@"; }

timed() { # NAME LINES COMMAND…: the exit code, the seconds and the last lines; all of it goes to $OUT/NAME.log
  local name=$1 lines=$2 started=$SECONDS code; shift 2
  "$@" > "$OUT/$name.log" 2>&1; code=$?
  echo "== $name: exit $code, $((SECONDS - started)) s, $WORKERS workers" | tee -a "$OUT/summary.txt"
  tail -n "$lines" "$OUT/$name.log" | cut -c1-200
}

# What the default run catches of errors under pairs and triples of conditions, with seeds that no array has seen.
conditions() {
  for seed in $SEEDS; do
    timed "conditions-$seed" 90 command_line mutants --conditions "$N" --seed "$seed" -n "$WORKERS" --out "$RUNS/now-$seed"
    cp "$RUNS/now-$seed"/*/mutants.jsonl "$OUT/conditions-$seed.jsonl" 2>/dev/null
  done
}

# Small changes of the engine and of its kernels, and the page of them. They are tried in random order, so a run that
# its time limit cuts is a sample: `mutants` once more goes on with it.
mutants() {
  local runs="$RUNS/mutants-$MUTANT_SEED" run how
  how=(--changes "$MUTANTS" --seed "$MUTANT_SEED" --out "$runs")
  run=$(ls -d "$runs"/*/ 2>/dev/null | tail -1)
  [ -n "$run" ] && how=(--resume "$run")
  SECONDS_EACH=$MUTANT_SECONDS timed "mutants-$MUTANT_SEED" 4 command_line mutants "${how[@]}" -n "$WORKERS"
  run=$(ls -d "$runs"/*/ | tail -1)
  cp "$run/mutants.jsonl" "$OUT/mutants-$MUTANT_SEED.jsonl"
  "$PYTHON" -m trust.mutants.page "$run" > "$OUT/mutants.md" 2> "$OUT/mutants-reasons.log"
  # The sums of its tables, and what no judgement killed.
  grep -E '^(\| all |[0-9]+ of [0-9]+ mutants)' "$OUT/mutants.md" | cut -c1-200
  sed -n '/^## Not killed/,/^## Equivalent/p' "$OUT/mutants.md" | cut -c1-240
}

# Drawn cases on right kernels: each finding is a false alarm.
controls() {
  local seed
  for seed in $CONTROL_SEEDS; do
    timed "controls-$seed" 12 command_line selftest --controls "$CONTROLS" --seed "$seed" -n "$WORKERS" \
      --out "$RUNS/controls-$seed"
    grep -hE '^(false alarms|clean cases)' "$OUT/controls-$seed.log" >> "$OUT/summary.txt"
  done
}

# docs/data/tolerances.md as measured today.
tolerances() {
  timed tolerances 0 timeout -k 10 "$MUTANT_SECONDS" "$PYTHON" -m trust.tolerances --draws "${DRAWS:-2000}" \
    --seeds "${TOLERANCE_SEEDS:-8}" --workers "$WORKERS"
  cp "$OUT/tolerances.log" "$OUT/tolerances.md"
  grep -E '^\| (`|experts|tokens)' "$OUT/tolerances.md" | cut -c1-130
}

for part in "${@:-conditions}"; do
  "$part"
done
exit 0
