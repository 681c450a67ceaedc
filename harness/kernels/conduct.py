"""What a kernel under judgement did besides its work: noted where it is called, judged by oracle
`honest`.
"""

from __future__ import annotations

from dataclasses import dataclass

from harness.kernels.noted import Noted


@dataclass(frozen=True, slots=True)
class Conduct:
    """One thing that a kernel did.

    `who` is "mla_decode/mine", `what` such as "read the objects of its process with
    gc.get_objects". `is_proof`: no honest kernel does it. Anything else counts only beside an
    output that is wrong. `site` is the output that it is about, such as "output"; empty for none.
    """

    who: str
    what: str
    is_proof: bool
    site: str = ""


CONDUCT: Noted[Conduct] = Noted("harness_noted_conduct")
"""What kernels did within a block."""
