"""What LMDeploy adds to the catalog: the rows of `tables.yaml`.

Imports neither torch nor LMDeploy.
"""

from __future__ import annotations

from pathlib import Path

from torch_poison import frames

from harness.api import rows_of_engine

ENGINE, SYSTEMS, MODELS, FAULTS, KERNELS = rows_of_engine(__file__, __name__)

# What the adapter allocates, it allocates for LMDeploy.
frames.skip_package(str(Path(__file__).parent))
