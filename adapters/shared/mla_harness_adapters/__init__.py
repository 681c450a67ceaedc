"""What adapters of serving engines share. They import nothing else of the project but `harness.api`
and `torch_poison`.
"""

from __future__ import annotations

from pathlib import Path

from torch_poison import frames

# What an adapter allocates, it allocates for its engine.
frames.skip_package(str(Path(__file__).parent))
