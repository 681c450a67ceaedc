#!/usr/bin/env bash
# On one GPU with vLLM: default graphs under poison between segments. benchmarks/gpu_served.sh OUT [SELECTOR]
set -u
out=$1; mkdir -p "$out"
PYTHON=${PYTHON:-python3} SERVED_SECONDS=${SERVED_SECONDS:-300}
# Warnings of an engine's packages are not ours to mend.
timeout -k 10 90 "$PYTHON" -m pytest -q tests/gpu/test_segments.py -p no:cacheprovider -W default > "$out/segments.log" 2>&1
echo "== segments: exit code $?"; tail -4 "$out/segments.log" | cut -c1-200
start=$SECONDS
timeout -k 10 "$SERVED_SECONDS" "$PYTHON" -m harness.cli.main run "${2:-vllm-breakable-graphs}" --device "${DEVICE:-cuda}" -n 4 --history none --out "$out/runs" --timeout "$SERVED_SECONDS" > "$out/breakable.log" 2>&1
echo "== vllm-breakable-graphs: exit code $?, $((SECONDS - start)) s"; tail -25 "$out/breakable.log" | cut -c1-240
grep -o '"segments": *[0-9]*' -r "$out/runs" | sort | uniq -c | head
exit 0
