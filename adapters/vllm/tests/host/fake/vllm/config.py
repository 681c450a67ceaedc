from enum import Enum


class CUDAGraphMode(Enum):
    NONE = 0
    PIECEWISE = 1
    FULL = 2

    def has_full_cudagraphs(self) -> bool:
        return self is CUDAGraphMode.FULL
