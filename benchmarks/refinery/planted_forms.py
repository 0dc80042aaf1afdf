"""Personal data in forms beyond those of `planted_personal`, and what only looks like such data."""

import random
from collections.abc import Callable

from benchmarks.refinery.planted_personal import MAKERS, digits

Form = Callable[[random.Random], str]


def letters(draw: random.Random, count: int) -> str:
    """So many small letters."""
    return "".join(draw.choices("abcdefghiklmnoprstuvw", k=count))


def true_value(kind: str, draw: random.Random) -> str:
    """As `planted_personal` makes it, or in one form of a quarter that it does not know."""
    return draw.choice(_FORMS[kind])(draw) if kind in _FORMS and draw.random() < 0.25 else MAKERS[kind](draw, True)


def unseen_value(kind: str, draw: random.Random) -> str:
    """One of `UNSEEN`."""
    return draw.choice(UNSEEN[kind])(draw)


def lookalike(kind: str, draw: random.Random) -> str:
    """Not of the kind."""
    return draw.choice(_LOOKALIKES[kind])(draw)


_FORMS: dict[str, list[Form]] = {
    "email": [
        lambda draw: f"{letters(draw, 5).upper()}.{letters(draw, 4).upper()}@EXAMPLE.ORG",
        lambda draw: f"{letters(draw, 4)}.{letters(draw, 6)}+{digits(draw, 2)}@mail.{letters(draw, 5)}.co.jp",
        lambda draw: f"j\u00fcrgen.{letters(draw, 5)}@b\u00fccher.example",
    ],
    "phone": [
        lambda draw: f"+81 3-{digits(draw, 4)}-{digits(draw, 4)}",
        lambda draw: f"+966 11 {digits(draw, 3)} {digits(draw, 4)}",
        lambda draw: f"+44 (0)20 7946 {digits(draw, 4)}",
        lambda draw: f"+39-06-{digits(draw, 4)}-{digits(draw, 4)}",
    ],
    "key": [
        lambda draw: f"github_pat_{letters(draw, 22)}_{letters(draw, 59)}",
        lambda draw: f"npm_{letters(draw, 36)}",
    ],
}
UNSEEN: dict[str, list[Form]] = {
    "email": [
        lambda draw: f"o'{letters(draw, 5)}@{letters(draw, 6)}.ie",
        lambda draw: f"{letters(draw, 4)}%{letters(draw, 3)}@{letters(draw, 5)}.photography",
        lambda draw: f"{letters(draw, 6)}_{digits(draw, 4)}@{digits(draw, 3)}.{letters(draw, 4)}.edu.au",
        lambda draw: f"{letters(draw, 5)} (at) {letters(draw, 6)} (dot) com",
        lambda draw: f"{letters(draw, 1)}@{letters(draw, 2)}.io",
    ],
    "phone": [
        lambda draw: f"8 (495) {digits(draw, 3)}-{digits(draw, 2)}-{digits(draw, 2)}",
        lambda draw: f"0033 1 {digits(draw, 2)} {digits(draw, 2)} {digits(draw, 2)} {digits(draw, 2)}",
        lambda draw: f"+86 138 {digits(draw, 4)} {digits(draw, 4)}",
        lambda draw: f"+49.30.{draw.randint(1, 9)}{digits(draw, 7)}",
        lambda draw: f"1.212.555.01{digits(draw, 2)}",
    ],
    "key": [
        lambda draw: f"sk_live_{letters(draw, 12)}{digits(draw, 4)}{letters(draw, 8).upper()}",
        lambda draw: f"AIzaSy{letters(draw, 20)}-{letters(draw, 8).upper()}{digits(draw, 4)}",
        lambda draw: f"glpat-{letters(draw, 10)}{digits(draw, 4)}{letters(draw, 6).upper()}",
        lambda draw: f"pypi-AgEIcHlwaS5vcmc{letters(draw, 40)}{digits(draw, 10)}{letters(draw, 60).upper()}",
        lambda draw: f"hf_{letters(draw, 20)}{letters(draw, 14).upper()}",
    ],
}
"""Forms that nobody held the patterns against before they were measured."""


def _hexadecimal(draw: random.Random, count: int) -> str:
    return f"{draw.getrandbits(4 * count):0{count}x}"


_LOOKALIKES: dict[str, list[Callable[[random.Random], str]]] = {
    "email": [
        lambda draw: f"{letters(draw, 5)}@localhost",
        lambda draw: f"@{letters(draw, 6)}",
        lambda draw: f"{letters(draw, 4)}@{digits(draw, 1)}.{digits(draw, 1)}.{digits(draw, 1)}",
        lambda draw: f"user @ {letters(draw, 5)}.h",
    ],
    "phone": [
        lambda draw: f"{draw.randint(1990, 2030)}-{draw.randint(10, 12)}-{draw.randint(10, 28)} {digits(draw, 2)}:30",
        lambda draw: f"{draw.randint(10, 28)}.{draw.randint(10, 12)}.{draw.randint(1990, 2030)}",
        lambda draw: f"ISBN 978-3-{digits(draw, 2)}-{digits(draw, 6)}-{digits(draw, 1)}",
        lambda draw: f"{draw.randint(1990, 2030)}{draw.randint(10, 12)}{draw.randint(10, 28)}",
        lambda draw: f"RFC {digits(draw, 4)}",
        lambda draw: f"{digits(draw, 3)}.{digits(draw, 3)} km",
        lambda draw: f"0x{_hexadecimal(draw, 8)}",
    ],
    "iban": [lambda draw: MAKERS["iban"](draw, False), lambda draw: f"DE{digits(draw, 9)}"],
    "card": [
        lambda draw: f"{draw.randint(10**12, 10**13)}",
        lambda draw: f"0x{digits(draw, 16)}",
        lambda draw: f"3.{digits(draw, 15)}",
    ],
    "key": [
        lambda draw: _hexadecimal(draw, 40),
        lambda draw: f"sha256:{_hexadecimal(draw, 64)}",
        lambda draw: "-".join(_hexadecimal(draw, size) for size in (8, 4, 4, 4, 12)),
        lambda draw: f"AKIA{letters(draw, 4)}",
        lambda draw: f"password = {draw.choice(('None', 'getpass()', '<secret>'))}",
    ],
    "ip": [
        lambda draw: f"version {draw.randint(2, 9)}.{draw.randint(0, 40)}.{draw.randint(0, 20)}.{draw.randint(1, 9)}",
        lambda draw: f"v{draw.randint(1, 9)}.{draw.randint(1, 9)}.0.3",
        lambda draw: f"{draw.randint(1, 9)}.{draw.randint(10, 60)}.{draw.randint(0, 9)}-{draw.randint(1, 9)}",
        lambda draw: f"192.168.{draw.randint(0, 250)}.{draw.randint(1, 250)}",
        lambda draw: f"{draw.randint(10, 23)}:{draw.randint(10, 59)}:{draw.randint(10, 59)}",
        lambda draw: f"{draw.randint(256, 999)}.{digits(draw, 2)}.1.{digits(draw, 2)}",
    ],
}
