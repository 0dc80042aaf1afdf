"""Numbers and times of plans for people."""


def seconds_text(value: float) -> str:
    """A time in the unit that suits it."""
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if value >= 2 * size:
            return f"{value / size:.1f} {unit}"
    return f"{value:.2f} s" if value >= 1 else f"{1e3 * value:.1f} ms"


def short(number: float) -> str:
    """A number in three digits."""
    for unit, size in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number:.0f}"
