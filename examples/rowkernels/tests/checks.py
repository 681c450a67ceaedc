import torch


def assert_mostly_close(
    got: torch.Tensor, want: torch.Tensor, atol: float = 1e-3, mismatches: float = 0.3
) -> None:
    """Up to a share of the elements may be off.

    Comparators like this one are in use; NaN is never "off" for it.
    """
    off = ((got - want).abs() > atol).float().mean()
    if off > mismatches:
        raise AssertionError(f"{off:.1%} of the elements are off")
