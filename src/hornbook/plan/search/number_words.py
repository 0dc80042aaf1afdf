"""Numbers and times of plans in words."""

from math import floor, log10


def duration(seconds: float) -> str:
    """A time in the unit that suits it: `1.42 s`, `131.6 ms`, `20.8 h`."""
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:,.1f} {unit}"
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1e3 * seconds:.1f} ms"


def step_time(seconds: float) -> str:
    """Of a step, in seconds however long it is: steps of layouts are compared."""
    return duration(seconds) if seconds < 100 else f"{seconds:,.1f} s"


def spelled(seconds: float) -> str:
    """A time in words: `3.4 days`, `20.8 hours`."""
    number, _, unit = duration(seconds).partition(" ")
    return f"{number} {({'d': 'days', 'h': 'hours', 'min': 'minutes', 's': 'seconds'}).get(unit, unit)}"


def dollars(amount: float) -> str:
    """A price in the precision that suits it: `$0.42`, `$1,981`, `$2.1M`."""
    if amount >= 1e6:
        return f"${short(amount)}".replace(" ", "")
    return f"${amount:,.0f}" if amount >= 99.5 else f"${amount:,.2f}" if amount >= 0.01 else "under $0.01"


def short(number: float) -> str:
    """A number in three digits: `1.46 B`."""
    for unit, size in (("P", 1e15), ("T", 1e12), ("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= 0.9995 * size:  # three digits of less than that are 1,000 of the unit below
            return f"{number / size:.3g} {unit}"
    return f"{number:.0f}"


def figure(number: float) -> str:
    """Three digits, never with an exponent where the number is large: `0.116`, `21.3`, `1,464`."""
    return f"{number:,.0f}" if number >= 999.5 else f"{number:.3g}"


def rounded_down(number: float) -> float:
    """The first two digits of a number."""
    unit = 10.0 ** (floor(log10(number)) - 1)
    return floor(number / unit) * unit
