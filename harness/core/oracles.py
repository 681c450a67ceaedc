"""The oracles that the harness has itself; engines add their own. No torch here."""

from __future__ import annotations

from harness.core.oracle_spec import OracleSpec

ORACLES: tuple[OracleSpec, ...] = (
    OracleSpec("finite", "live rows hold no NaN and no Inf where the reference is finite",
               "harness.judge.oracles.finite:judge"),
    OracleSpec("sentinel", "no sentinel is found verbatim in live rows, and guarded memory is untouched",
               "harness.judge.oracles.sentinel:judge"),
    OracleSpec("reference", "live rows agree with the float64 reference", "harness.judge.oracles.reference:judge"),
    OracleSpec("non_interference", "live rows are bitwise equal under two different poisons",
               "harness.judge.oracles.non_interference:judge", needs="patterns"),
    OracleSpec("replay", "a graph replay equals the same step run eagerly, and its answer moves as its inputs do",
               "harness.judge.oracles.replay:judge", needs="graph"),
    OracleSpec("padding", "live rows of a captured batch are bitwise equal whatever the number of padded ones",
               "harness.judge.oracles.pairs:padding", needs="graph"),
    OracleSpec("address", "the tensor that a graph captured is the one that the engine updates",
               "harness.judge.oracles.address:judge", needs="graph"),
    OracleSpec("cold_warm", "a prompt is answered alike whether its prefix was cached or not",
               "harness.judge.oracles.pairs:cold_warm", needs="warm"),
    OracleSpec("flush", "after a flush of all caches the answers are as they were at first",
               "harness.judge.oracles.pairs:flush", needs="flush"),
    OracleSpec("zeroed", "each block that the scheduler says to zero holds zeros before its first read",
               "harness.judge.oracles.zeroed:judge", needs="mixed"),
    OracleSpec("distinct_experts", "the experts of each token, padding included, are distinct and exist",
               "harness.judge.oracles.distinct_experts:judge", needs="experts"),
    OracleSpec("accuracy",
               "in every epoch the canary answers as many questions right as its baseline, and the same ones",
               "harness.judge.oracles.accuracy:judge", needs="answers"),
    OracleSpec("answers",
               "in every epoch vLLM answers as many questions right as the canary is known to, with no invalid token",
               "harness.judge.oracles.accuracy:answers", needs="answers"),
    OracleSpec("streams", "vLLM with graphs generates what it generates without them",
               "harness.judge.oracles.streams:judge", needs="graph"),
    OracleSpec("crash", "the worker survives: no illegal address, no signal, no exception, no hang",
               "harness.judge.oracles.crash:judge"),
)  # fmt: skip
