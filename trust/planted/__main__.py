"""`python -m trust.planted [FILE]...`: judge each planted kernel by the cases of a plain run, and
print the table. Exit code 1 if one is judged wrongly.
"""

from __future__ import annotations

import sys
import time

from harness.core.records import Blame
from trust.planted.plant import FILES, Planted, all_planted, blame_of, cases_of, failures


def blame_word(one: Planted, blame: Blame) -> str:
    """Whether the memory that a blame names is that of the error."""
    named = set(blame.sites)
    if not named:
        return "rightly none" if not one.blames else "none"
    return "right" if named & one.blames and not named - one.blames else "WRONG"


def main(files: list[str]) -> int:
    """Print a row for each kernel, and the sums. Returns the exit code."""
    print(
        "| op | kernel | what it does | verdict | by | blame |\n| --- | --- | --- | --- | --- | --- |"
    )
    counts: dict[str, int] = {}
    num_wrong = 0
    for one in all_planted(*files):
        found = next(failures(cases_of(one)), None)
        by = word = ""
        if found is not None:
            job, result = found
            finding = result.findings[0]
            blame = blame_of(job, result)
            word = blame_word(one, blame)
            word += f" ({', '.join(blame.sites)})" if blame.sites else ""
            by = f"{job.case.scenario}: {finding.oracle}"
            counts[word.partition(" (")[0]] = counts.get(word.partition(" (")[0], 0) + 1
        verdict = "red" if found else "green"
        is_right = (verdict == "green") == one.is_legal
        num_wrong += not is_right or word.startswith("WRONG")
        verdict = verdict if is_right else verdict.upper()
        print(
            f"| {one.spec.op} | {one.name} | {one.spec.summary} | {verdict} | {by} | {word} |",
            flush=True,
        )
    print(f"{len(all_planted(*files))} kernels, {num_wrong} judged wrongly; blame: {counts}")
    return 1 if num_wrong else 0


if __name__ == "__main__":
    started = time.monotonic()
    unknown = set(sys.argv[1:]) - set(FILES)
    if unknown:
        sys.exit(f"usage: python -m trust.planted [{'|'.join(FILES)}]...")
    code = main(sys.argv[1:])
    print(f"{time.monotonic() - started:.0f} s", file=sys.stderr)
    sys.exit(code)
