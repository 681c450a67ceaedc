"""What FlashInfer adds to the catalog: the rows of `tables.yaml`.

Imports neither torch nor FlashInfer.
"""

from __future__ import annotations

from harness.core.engine_tables import rows_of_engine

ENGINE, SYSTEMS, MODELS, FAULTS, KERNELS = rows_of_engine(__file__, __name__)
