#!/usr/bin/env bash
# On one GPU with vLLM: default graphs under poison between segments. benchmarks/gpu_served.sh OUT
set -u
out=$1; mkdir -p "$out"
python3 -m pytest -q tests/gpu/test_segments.py -p no:cacheprovider -o addopts= > "$out/segments.log" 2>&1; tail -2 "$out/segments.log"
start=$SECONDS
python3 -m harness.cli.main run vllm-breakable-graphs --device cuda -n 4 --per-gpu 4 --out "$out/runs" --timeout 280 > "$out/breakable.log" 2>&1
echo "== vllm-breakable-graphs: exit code $?, $((SECONDS - start)) s"; tail -25 "$out/breakable.log" | cut -c1-240
grep -o '"segments": *[0-9]*' -r "$out/runs" | sort | uniq -c | head
