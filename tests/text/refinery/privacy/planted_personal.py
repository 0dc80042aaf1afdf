"""Texts in six languages with personal data planted in them, and numbers beside it that only look like such data.

Everything is drawn from a seed. What is valid is made by searching the check digit, so nothing here names anybody.
"""

import random
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import NamedTuple

from hornbook.text.refinery.privacy import check_digits

CARRIERS = {
    "en": ("Please write to {} before Friday.", "The entry {} was added to the list by mistake."),
    "de": ("Bitte tragen Sie {} in das Formular ein.", "Der Eintrag {} steht schon in der Liste."),
    "fr": ("Veuillez noter {} dans le dossier.", "Nous avons re\u00e7u {} hier soir."),
    "es": ("El registro indica {} desde ayer.", "Anote {} en la hoja, por favor."),
    "ru": (
        "\u0412 \u0437\u0430\u043f\u0438\u0441\u0438 \u0443\u043a\u0430\u0437\u0430\u043d\u043e {} "
        "\u0441\u043e \u0432\u0447\u0435\u0440\u0430\u0448\u043d\u0435\u0433\u043e \u0434\u043d\u044f.",
    ),
    "zh": (
        "\u8bf7\u5728\u8868\u683c\u4e2d\u586b\u5199 {} \u3002",
        "\u8bb0\u5f55\u4e2d\u6709 {} \u8fd9\u4e00\u9879\u3002",
    ),
}
"""Language -> sentences with a place for one planted thing."""


class Planted(NamedTuple):
    """One sentence."""

    text: str
    language: str
    kind: str
    """What is planted; "" where it only looks so."""
    value: str
    wants: str
    """The kind of which it is an example or a near miss."""


def digits(draw: random.Random, count: int) -> str:
    """So many digits."""
    return "".join(draw.choices("0123456789", k=count))


def _search(make: Callable[[], str], rule: Callable[[str], bool], wanted: bool) -> str:
    """The first made text of which the rule, blanks and dashes aside, says what is wanted."""
    while True:
        text = make()
        if rule("".join(each for each in text if each.isalnum())) is wanted:
            return text


def _groups(text: str, *sizes: int, by: str = " ") -> str:
    places = [sum(sizes[:i]) for i in range(len(sizes) + 1)]
    return by.join(text[a:b] for a, b in pairwise(places))


def _email(draw: random.Random, valid: bool) -> str:
    name = "".join(draw.choices("abcdefghijklmnoprstuvw", k=draw.randint(3, 9)))
    domain = draw.choice(["example.org", "mail.example.co.uk", "beispiel.de", "xn--bcher-kva.example"])
    return f"{name}{draw.choice(['', '.b', '+x', '_7'])}@{domain if valid else draw.choice(['home', '1.2.3'])}"


def _phone(draw: random.Random, valid: bool) -> str:
    d = lambda n: digits(draw, n)  # noqa: E731 - eight times in one expression
    if not valid:
        return draw.choice([f"{d(2)}:{d(2)}:{d(2)}", f"{draw.randint(1900, 2099)}-11-2{d(1)}", f"1{d(5)}"])
    area, exchange = draw.randint(201, 989), draw.randint(200, 999)
    forms = [
        f"+49 30 {d(7)}", f"+33 1 {_groups(d(8), 2, 2, 2, 2)}", f"+7 (495) {d(3)}-{d(2)}-{d(2)}",
        f"+86 138 {d(4)} {d(4)}",
        f"({area}) {exchange}-{d(4)}", f"{area}-{exchange}-{d(4)}", f"+1 {area} 555 {d(4)}",
        f"06 {_groups(d(8), 2, 2, 2, 2)}", f"0171/{d(7)}", f"020 7946 {d(4)}",
    ]  # fmt: skip
    return draw.choice(forms)


def _iban(draw: random.Random, valid: bool) -> str:
    country = draw.choice(["DE", "FR", "ES", "NL", "CH", "PL"])
    size = check_digits.IBAN_LENGTHS[country] - 4
    text = _search(lambda: country + digits(draw, 2 + size), check_digits.iban, valid)
    return draw.choice([text, " ".join(text[i : i + 4] for i in range(0, len(text), 4))])


def _card(draw: random.Random, valid: bool) -> str:
    head = draw.choice(["4000", "5212", "6011"])
    text = _search(lambda: head + digits(draw, 12), check_digits.card, valid)
    return draw.choice([text, _groups(text, 4, 4, 4, 4), _groups(text, 4, 4, 4, 4, by="-")])


def _ip(draw: random.Random, valid: bool) -> str:
    if not valid:
        return draw.choice([f"v1.{draw.randint(1, 9)}.0.3", f"300.{digits(draw, 2)}.1.256", "10.0.0.7", "fe80::12"])
    octets = [draw.choice([8, 52, 93, 151]), *(draw.randint(1, 254) for _ in range(3))]
    return draw.choice([".".join(map(str, octets)), f"2a00:1450:{draw.randint(1000, 9999)}::{draw.randint(100, 999)}"])


def _national(draw: random.Random, valid: bool) -> str:  # noqa: PLR0911 - one for each country
    d = lambda n: digits(draw, n)  # noqa: E731 - as above
    if not valid:
        return _search(lambda: f"{d(3)}.{d(3)}.{d(3)}-{d(2)}", check_digits.br_cpf, False)
    kind = draw.randrange(6)
    if kind == 0:
        return _search(lambda: _groups(d(9), 3, 2, 4, by="-"), check_digits.us_ssn, True)
    if kind == 1:
        return _search(lambda: d(8) + draw.choice("TRWAGMYFPDXBNJZSQVHLCKE"), check_digits.es_dni, True)
    if kind == 2:
        return _search(lambda: f"{d(3)}.{d(3)}.{d(3)}-{d(2)}", check_digits.br_cpf, True)
    if kind == 3:
        return _search(lambda: f"1 85 05 78 {d(3)} {d(3)} {d(2)}", check_digits.fr_nir, True)
    if kind == 4:
        return _search(
            lambda: f"RSSMRA85T10A{d(3)}{draw.choice('ABCDEFGHIJKLMNOPQRSTUVWXYZ')}", check_digits.it_codice, True
        )
    return _search(lambda: f"{draw.randint(2, 9)}{d(3)} {d(4)} {d(4)}", check_digits.in_aadhaar, True)


def _address(draw: random.Random, valid: bool) -> str:
    number = draw.randint(1, 240)
    if not valid:
        return draw.choice([f"chapter {number}", f"Python {number}", f"{number} rows", f"{number} Linux machines"])
    forms = [
        "{} Main Street",
        "{} North Elm Avenue",
        "Hauptstra\u00dfe {}",
        "Berliner Allee {}",
        "Calle Mayor, {}",
        "Via Roma {}",
    ]
    forms += [
        "{}, rue de la Paix",
        "{} avenue Victor Hugo",
        "Kerkstraat {}",
        "\u0443\u043b. \u041b\u0435\u043d\u0438\u043d\u0430, \u0434. {}",
    ]
    return draw.choice(forms).format(number)


def _key(draw: random.Random, valid: bool) -> str:
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    if not valid:
        return draw.choice(
            ["AKIA", "sk_test_", "token = next_token", "password: changeme", "-----BEGIN CERTIFICATE-----"]
        )
    body = "".join(draw.choices(letters.lower() + letters + "0123456789", k=60))
    forms = [f"ghp_{body[:36]}", f"sk_live_{body[:24]}", f"xoxb-{body[:24]}", f"AIza{body[:35]}", f"glpat-{body[:20]}"]
    forms += ["AKIA" + "".join(draw.choices(letters + "234567", k=16)), f"eyJ{body[:20]}.eyJ{body[20:40]}.{body[40:]}"]
    return draw.choice(forms)


MAKERS = {
    "email": _email,
    "phone": _phone,
    "iban": _iban,
    "card": _card,
    "ip": _ip,
    "national_id": _national,
    "address": _address,
    "key": _key,
}


def planted(count: int, seed: int = 0) -> Iterator[Planted]:
    """`count` true and half as many false of each kind, in turn in the six languages."""
    draw = random.Random(seed)
    languages = list(CARRIERS)
    for kind, make in MAKERS.items():
        for number in range(count + count // 2):
            language = languages[number % len(languages)]
            valid = number < count
            value = make(draw, valid)
            text = draw.choice(CARRIERS[language]).format(value)
            yield Planted(text, language, kind if valid else "", value, kind)


def scores(found: Callable[[str], list[tuple[str, str]]], sentences: list[Planted]) -> dict[str, dict[str, float]]:
    """kind -> precision and recall of a function from text to (kind, value); both must be right to the letter."""
    figures = {}
    for kind in MAKERS:
        hits = wrong = planted_ones = 0
        for each in sentences:
            got = found(each.text)
            hit = (each.kind, each.value) in got
            hits += hit and each.kind == kind
            planted_ones += each.kind == kind
            wrong += sum(one[0] == kind and one != (each.kind, each.value) for one in got)
        figures[kind] = {"precision": hits / max(1, hits + wrong), "recall": hits / max(1, planted_ones)}
    return figures
