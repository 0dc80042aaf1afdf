"""Check digits and rules of numbers of people, accounts and cards. Each function takes a number without separators."""

import datetime
import re
import tomllib
from collections.abc import Callable
from pathlib import Path

WORDS, PATTERNS = (
    tomllib.loads(Path(__file__).with_name(name).read_text(encoding="utf-8"))
    for name in ("words.toml", "patterns.toml")
)
IBAN_LENGTHS = {country: int(size) for size, countries in WORDS["iban"].items() for country in countries.split()}
"""Characters of an IBAN by country (ISO 13616 registry)."""

_VERHOEFF = (  # products in the dihedral group of order ten (Verhoeff 1969)
    *((0, 1, 2, 3, 4, 5, 6, 7, 8, 9), (1, 2, 3, 4, 0, 6, 7, 8, 9, 5), (2, 3, 4, 0, 1, 7, 8, 9, 5, 6)),
    *((3, 4, 0, 1, 2, 8, 9, 5, 6, 7), (4, 0, 1, 2, 3, 9, 5, 6, 7, 8), (5, 9, 8, 7, 6, 0, 4, 3, 2, 1)),
    *((6, 5, 9, 8, 7, 1, 0, 4, 3, 2), (7, 6, 5, 9, 8, 2, 1, 0, 4, 3), (8, 7, 6, 5, 9, 3, 2, 1, 0, 4)),
    (9, 8, 7, 6, 5, 4, 3, 2, 1, 0),
)
_TURN = (1, 5, 7, 6, 2, 8, 3, 0, 9, 4)

_ISSUERS = re.compile("|".join(PATTERNS["issuers"]))

_CODICE_ODD = (1, 0, 5, 7, 9, 13, 15, 17, 19, 21, 2, 4, 18, 20, 11, 3, 6, 8, 12, 14, 16, 10, 22, 25, 24, 23)


def luhn(digits: str) -> bool:
    """ISO/IEC 7812-1 annex B."""
    odd = sum(map(int, digits[-1::-2]))
    even = sum(9 if each == "9" else int(each) * 2 % 9 for each in digits[-2::-2])
    return (odd + even) % 10 == 0


def card(digits: str) -> bool:
    """An issuer's length and first digits, and Luhn's sum."""
    return _ISSUERS.fullmatch(digits) is not None and luhn(digits)


def iban(text: str) -> bool:
    """The country's length, and the remainder of ISO 7064 mod 97-10."""
    if IBAN_LENGTHS.get(text[:2]) != len(text):
        return False
    return int("".join(str(int(each, 36)) for each in text[4:] + text[:4])) % 97 == 1


def us_ssn(digits: str) -> bool:
    """Area, group and serial in the ranges that the SSA issues."""
    area = digits[:3]
    return area not in ("000", "666") and area[0] != "9" and digits[3:5] != "00" and digits[5:] != "0000"


def de_tax(digits: str) -> bool:
    """Steuerliche Identifikationsnummer: ISO 7064 mod 11,10; of ten digits one stands two or three times."""
    counts = sorted(digits[:10].count(each) for each in set(digits[:10]))
    if digits[0] == "0" or counts[-1] not in (2, 3) or (len(counts) > 1 and counts[-2] > 1):
        return False
    product = 10
    for each in digits[:10]:
        product = ((product + int(each)) % 10 or 10) * 2 % 11
    return (11 - product) % 10 == int(digits[10])


def fr_nir(digits: str) -> bool:
    """Numero de securite sociale: sex, month, and the key 97 - n mod 97 (no departments 2A and 2B)."""
    month = int(digits[3:5])
    return (
        digits[0] in "123478" and (1 <= month <= 12 or month >= 20) and 97 - int(digits[:13]) % 97 == int(digits[13:])
    )


def es_dni(text: str) -> bool:
    """DNI (eight digits) or NIE (X, Y or Z and seven): the letter is the remainder by 23."""
    return "TRWAGMYFPDXBNJZSQVHLCKE"[int(text[:-1].translate(str.maketrans("XYZ", "012"))) % 23] == text[-1]


def it_codice(text: str) -> bool:
    """Codice fiscale: the sixteenth letter (decree of 23 December 1976)."""
    values = [int(each, 36) - 10 if each.isalpha() else int(each) for each in text]
    total = sum(_CODICE_ODD[value] for value in values[:15:2]) + sum(values[1:15:2])
    return total % 26 == values[15]


def nl_bsn(digits: str) -> bool:
    """Burgerservicenummer: weights 9..2 and -1, a multiple of eleven."""
    total = sum(int(each) * weight for each, weight in zip(digits, (9, 8, 7, 6, 5, 4, 3, 2, -1), strict=True))
    return total % 11 == 0 and int(digits) > 0


def br_cpf(digits: str) -> bool:
    """Cadastro de pessoas fisicas: two check digits by eleven; not one digit eleven times."""
    for place in (9, 10):
        total = sum(int(each) * (place + 1 - index) for index, each in enumerate(digits[:place]))
        if total * 10 % 11 % 10 != int(digits[place]):
            return False
    return len(set(digits)) > 1


def in_aadhaar(digits: str) -> bool:
    """Twelve digits, the first not 0 or 1, Verhoeff's sum."""
    total, order = 0, tuple(range(10))
    for each in reversed(digits):
        total = _VERHOEFF[total][order[int(each)]]
        order = tuple(_TURN[place] for place in order)
    return digits[0] > "1" and total == 0


def pl_pesel(digits: str) -> bool:
    """Weights 1 3 7 9, and a month that exists in some century."""
    total = sum(int(each) * weight for each, weight in zip(digits, (1, 3, 7, 9, 1, 3, 7, 9, 1, 3, 1), strict=True))
    return total % 10 == 0 and 1 <= int(digits[2:4]) % 20 <= 12 and 1 <= int(digits[4:6]) <= 31


def cn_resident(text: str) -> bool:
    """GB 11643: a date of birth, and ISO 7064 mod 11-2."""
    try:
        datetime.date(int(text[6:10]), int(text[10:12]), int(text[12:14]))
    except ValueError:
        return False
    total = sum(int(each) * pow(2, 17 - index, 11) for index, each in enumerate(text[:17]))
    return text[0] in "12345678" and "10X98765432"[total % 11] == text[17]


RULES: dict[str, Callable[[str], bool]] = {
    rule.__name__: rule
    for rule in (us_ssn, de_tax, fr_nir, br_cpf, in_aadhaar, nl_bsn, pl_pesel, cn_resident, card, es_dni)
}
"""Kind of number -> its rule; the first that fits a text counts."""
