"""The personal data at an anchor: patterns of bounded length over bytes, and rules for their matches.

Every matcher takes (text in UTF-8, position of the anchor, least start) and returns (start, end, kind) or None.
"""

import ipaddress
import math
import re
from functools import cache
from itertools import pairwise

from hornbook.files.secrets import KEYS
from hornbook.text.refinery.privacy import check_digits
from hornbook.text.refinery.privacy.check_digits import PATTERNS, WORDS

Found = tuple[int, int, str] | None

_LOCAL = rb"(?:[A-Za-z0-9!#$%&'*+/=?^_`{|}~.-]|[\xc3-\xc9][\x80-\xbf])"
_LOCAL_END = re.compile(_LOCAL + rb"{1,64}\Z")
_CONTEXT_BYTES = 48


def _any(name: str) -> bytes:
    """The alternatives of patterns.toml under a name."""
    return "|".join(PATTERNS[name]).encode()


_DOMAIN = re.compile(_any("email"))


def email(data: bytes, place: int, least: int) -> Found:
    """An address around `@` (RFC 5322 atoms, a domain of at least two labels, the last of letters)."""
    domain = _DOMAIN.match(data, place, min(len(data), place + 256))
    start = place
    while start > max(least, place - 64) and (data[start - 1] in _LOCAL_BYTES or data[start - 1] >= 0x80):
        start -= 1
    local = _LOCAL_END.search(data[start:place]) if domain else None
    if domain is None or local is None:
        return None
    name = local.group().lstrip(b".'`/=|{}*&$!#%^~-?")
    if not name or name.endswith(b".") or b".." in name:
        return None
    return place - len(name), domain.end(), "email"


_LOCAL_BYTES = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789!#$%&'*+/=?^_`{|}~.-")

_IPV4 = re.compile(_any("ipv4"))
_VERSION = re.compile(rb"(?:version|release|firmware|ver\.?|section|v)[ :=]{0,2}\Z", re.IGNORECASE)
_HEADING = re.compile(rb"[.:]?[ \t]+[A-Z]|[.:]?[ \t]*\n")  # numbers of sections
_IPV6 = re.compile(_any("ipv6"))


def ipv4(data: bytes, place: int) -> Found:
    """Four octets without leading zeros, unless a word for a version precedes them."""
    found = _IPV4.match(data, place)
    if found is None or _VERSION.search(data, max(0, place - 12), place):
        return None
    small = all(int(each) < 32 for each in found.group().split(b"."))
    if small and _HEADING.match(data, found.end()) and not data[max(0, place - 1) : place].strip(b" \n"):
        return None
    return found.start(), found.end(), "ip"


def ipv6(data: bytes, place: int, least: int) -> Found:
    """An address with `::` or all eight groups (RFC 4291), of at least three digits in all."""
    start = place
    while start > max(least, place - 4) and data[start - 1] in b"0123456789abcdefABCDEF":
        start -= 1
    if start > 0 and (data[start - 1 : start].isalnum() or data[start - 1] in b"_:."):
        return None
    found = _IPV6.match(data, start, start + 40)
    text = found.group().decode() if found else ""
    end = start + len(text)
    whole = text.count(":") == 7 or "::" in text
    if not whole or data[end : end + 1].isalnum() or data[end : end + 1] in (b":", b"_"):
        return None
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return None
    return (start, end, "ip") if sum(each != ":" for each in text) >= 3 else None


_CONTEXT = {kind: re.compile("|".join(words).encode(), re.IGNORECASE) for kind, words in WORDS["context"].items()}

_END = r"(?![\w]|[-./ ]\d)", r"(?![\w]|[-./]\d)"
"""What must not follow a number, and what must not follow a card."""
_RULES = [
    (kind, re.compile(f"(?:{PATTERNS['numbers'][kind][form]}){_END[kind == 'card']}".encode()), rule, form == "plain")
    for kind, rule in check_digits.RULES.items()
    for form in ("grouped", "plain")
    if form in PATTERNS["numbers"][kind]
]
_SEPARATORS = str.maketrans("", "", " -./()")


def _has_context(kind: str, data: bytes, place: int) -> bool:
    return _CONTEXT[kind].search(data, max(0, place - _CONTEXT_BYTES), place) is not None


def number(data: bytes, place: int, least: int) -> Found:
    """An IPv4 address, a card, a national number or a telephone number that starts with a digit (or `+`, `(`)."""
    found = ipv4(data, place)
    if found:
        return found
    for kind, pattern, rule, needs_context in _RULES:
        match = pattern.match(data, place)
        if match is None or not rule(match.group().decode().translate(_SEPARATORS)):
            continue
        if not needs_context or _has_context(kind, data, place):
            return place, match.end(), "card" if kind == "card" else "national_id"
    return phone(data, place, least)


_COUNTRIES = re.compile(_any("countries"))
_INTERNATIONAL = re.compile(_any("international"))
_NATIONAL = re.compile(_any("national"))
_DUMP = re.compile(rb"(?<!\w)(?=[a-fA-F]*\d)[0-9a-fA-F]{2,8} \Z")  # hexadecimal before it
_OPEN = re.compile(_any("in_brackets"))
_ANY = re.compile(_any("other_phones"))


def phone(data: bytes, place: int, least: int) -> Found:
    """International numbers by country code, national ones in the groups of their country, others by context."""
    before = data[place - 1 : place] if place > least else b""
    if before == b"+" or data[place : place + 2] == b"00":
        skip = 0 if before == b"+" else 2
        found = _INTERNATIONAL.match(data, place + skip, place + 36)
        spelled = before == b"+" or (found and len(found.group().split()) > 2) or _has_context("phone", data, place)
        if found and spelled and _COUNTRIES.match(found.group()) and 8 <= _digits(found.group()) <= 15:
            return place - (before == b"+"), found.end(), "phone"
        return None
    if before == b"(":
        found = _OPEN.match(data, place)
        return (place - 1, found.end(), "phone") if found else None
    found = _NATIONAL.match(data, place) if before not in (b"-", b".", b"/") else None
    dump = _DUMP.search(data, max(0, place - 10), place)
    if found and not dump and 9 <= _digits(found.group()) <= 12 and not _is_count(found.group()):
        return place, found.end(), "phone"
    found = _ANY.match(data, place, place + 32)
    if found and 8 <= _digits(found.group()) <= 13 and _has_context("phone", data, place):
        return place, found.end(), "phone"
    return None


def _digits(found: bytes) -> int:
    return sum(48 <= each <= 57 for each in found)


def _is_count(found: bytes) -> bool:
    """Whether the groups count up by one: a table, a dump or dates, not a telephone number."""
    groups = [int(each) for each in re.findall(rb"\d+", found)]
    return len(groups) > 2 and all(b - a == 1 for a, b in pairwise(groups))


_NOTHING = re.compile(rb"(?!)")
_LETTERED = (
    (re.compile(_any("es_nie")), check_digits.es_dni),
    (re.compile(_any("it_codice")), check_digits.it_codice),
    (re.compile(_any("gb_insurance")), lambda _: True),
)


def lettered(data: bytes, place: int, least: int) -> Found:
    """An IBAN, or a national number that starts with letters."""
    del least
    match = _iban_pattern(data[place : place + 2].decode()).match(data, place)
    if match and check_digits.iban(match.group().decode().translate(_SEPARATORS)):
        return place, match.end(), "iban"
    for pattern, rule in _LETTERED:
        match = pattern.match(data, place)
        if match and rule(match.group().decode().translate(_SEPARATORS)):
            return place, match.end(), "national_id"
    return None


@cache
def _iban_pattern(country: str) -> re.Pattern[bytes]:
    """IBANs of a country's length, in groups of four or without spaces; matches nothing for other letters."""
    groups, rest = divmod(check_digits.IBAN_LENGTHS.get(country, 0) - 4, 4)
    if groups < 0:
        return _NOTHING
    tail = rb"(?: ?[A-Z0-9]{%d})" % rest if rest else b""
    return re.compile(rb"[A-Z]{2}\d\d(?: ?[A-Z0-9]{4}){%d}%s(?!\w)" % (groups, tail))


_BEFORE_KEY = 12
_KEYS = re.compile(rb"(?<![A-Za-z0-9])(?:%s)(?![A-Za-z0-9])" % "|".join(KEYS).encode())
_PEM = re.compile(rb"-----BEGIN ([A-Z ]{0,24}PRIVATE KEY(?: BLOCK)?)-----")
_PEM_BYTES = 16384


def key(data: bytes, place: int, least: int) -> Found:
    """A key with the prefix of its issuer, or a private key in PEM."""
    if data[place : place + 5] == b"-----":
        found = _PEM.match(data, place, place + 64)
        if found is None:
            return None
        last = b"-----END " + found.group(1) + b"-----"
        end = data.find(last, found.end(), found.end() + _PEM_BYTES)
        return None if end < 0 else (place, end + len(last), "key")
    for start in range(max(least, place - _BEFORE_KEY), place + 1):
        if data[start] in b"gsrpwhnxAe":
            found = _KEYS.match(data, start)
            if found:
                return start, found.end(), "key"
    return None


_NAMED = re.compile(rb"(?:%s)[\"' ]{0,3}\Z" % _any("secrets"), re.IGNORECASE)
_VALUE = re.compile(_any("values"))
_LEAST_BITS = 3.0


def assigned(data: bytes, place: int, least: int) -> Found:
    """A value that looks random (letters and digits, three bits a character), assigned to the name of a secret."""
    if _NAMED.search(data, max(least, place - 20), place) is None:
        return None
    found = _VALUE.match(data, place, place + 300)
    value = found.group(2) if found else b""
    if found is None or not (any(48 <= each <= 57 for each in value) and any(each > 64 for each in value)):
        return None
    if not found.group(1) and len(value) < 16:
        return None
    bits = -sum(n / len(value) * math.log2(n / len(value)) for n in (value.count(each) for each in set(value)))
    return (found.start(2), found.end(2), "key") if bits >= _LEAST_BITS else None
