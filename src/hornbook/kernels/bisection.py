"""Binary search in compiled code: a few instructions, where numba compiles a second of code for `np.searchsorted`."""

from hornbook.kernels.compiled import inlined


@inlined
def count_up_to(values, bound):
    """How many of some ascending values are at most `bound`, as `np.searchsorted(values, bound, side="right")`."""
    low, high = 0, values.size
    while low < high:
        middle = (low + high) // 2
        if values[middle] <= bound:
            low = middle + 1
        else:
            high = middle
    return low
