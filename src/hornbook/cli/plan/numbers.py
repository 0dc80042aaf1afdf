"""Numbers as plans print them."""


def seconds(value: float) -> str:
    """`20.8 h`, `131.6 ms`."""
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if value >= 2 * size:
            return f"{value / size:,.1f} {unit}"
    return f"{value:.2f} s" if value >= 1 else f"{1e3 * value:.1f} ms"


def short(number: float) -> str:
    """`1.46 B`."""
    for unit, size in (("P", 1e15), ("T", 1e12), ("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number:.0f}"
