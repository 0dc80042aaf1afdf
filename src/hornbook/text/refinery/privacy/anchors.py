"""One pass over the bytes of a text that finds where personal data may start, so that patterns run only there.

An anchor is an `@` between the letters of an address, a run of digits of some length, a colon between hexadecimal
digits, an assignment to a name such as `password`, or letters that only keys begin with.
"""

import numpy as np

from hornbook.kernels.compiled import compiled, inlined
from hornbook.text.refinery.privacy.check_digits import WORDS

AT, NUMBER, LETTERS, COLON, KEY, ASSIGNED, HOUSE = range(7)
"""Kinds of anchors: the second column."""

_NONE, _AT, _DIGIT, _COLON, _EQUALS, _KEY = range(6)
_MOST_BYTES, _LEAST_DIGITS = 48, 8


def _as_number(text: bytes) -> int:
    return int.from_bytes(text[-8:], "big")


GH, HF, NPM, WHSEC, GITHUB_PAT = (_as_number(each) for each in (b"gh", b"hf", b"npm", b"whsec", b"thub_pat"))
SK, RK, PK, GLPAT, XOX = (_as_number(each) for each in (b"sk", b"rk", b"pk", b"glpat", b"xox"))

_BEFORE, _AFTER = np.uint8(1), np.uint8(2)


def _streets() -> np.ndarray:
    """uint8 [8192], by a hash of the first three bytes of words for street: bit 1 before a number, bit 2 after it."""
    table = np.zeros(8192, dtype=np.uint8)
    for bit, words in ((_BEFORE, WORDS["streets"]["before"]), (_AFTER, WORDS["streets"]["after"])):
        for word in words:
            data = word.encode("utf-8")
            for third in [data[2]] if len(data) > 2 else range(128):
                table[(data[0] * 961 + data[1] * 31 + third) & 8191] |= bit
    return table


STREETS = _streets()


CLASSES = np.zeros(256, dtype=np.uint8)
CLASSES[ord("@")], CLASSES[ord(":")], CLASSES[ord("=")] = _AT, _COLON, _EQUALS
CLASSES[ord("0") : ord("9") + 1] = _DIGIT
CLASSES[list(b"_-KISJ")] = _KEY


@inlined
def _is_word(byte):
    return 48 <= byte <= 57 or 65 <= byte <= 90 or 97 <= byte <= 122 or byte == 95


@compiled
def _is_hex(byte):
    return 48 <= byte <= 57 or 65 <= byte <= 70 or 97 <= byte <= 102


@compiled
def _number(data, start):
    """(end of the first group, digits, dots) of the run of digits and separators at `start`."""
    end, place, digits, dots = 0, start, 0, 0
    limit = min(data.size, start + _MOST_BYTES)
    while place < limit:
        byte = data[place]
        if 48 <= byte <= 57:
            digits += 1
        else:
            if end == 0:
                end = place
            if byte not in (32, 40, 41, 45, 46, 47):  # space ( ) - . /
                break
            if not (place + 1 < limit and (48 <= data[place + 1] <= 57 or data[place + 1] in (32, 40, 41, 45))):
                break
            dots += byte == 46
        place += 1
    if end == 0:
        end = place
        while end < data.size and 48 <= data[end] <= 57:
            end += 1
    return end, digits, dots


@compiled
def _letters_before(data, start):
    """Start of the capitals (at most six) before a digit, or before a space and a digit; -1 where they are no word."""
    place = start - 1 if start > 0 and data[start - 1] == 32 else start
    first = place
    while first > 0 and place - first < 7 and 65 <= data[first - 1] <= 90:
        first -= 1
    count = place - first
    if count not in (1, 2, 6) or (first > 0 and _is_word(data[first - 1])) or (count != 2 and place != start):
        return -1
    if count == 1 and data[first] < 88:  # X, Y, Z
        return -1
    return first


@compiled
def _ends(data, i, letters):
    """Whether the bytes before `i` are `letters`, a number in base 256 whose lowest digit is the last byte."""
    place = i - 1
    while letters > 0:
        if place < 0 or data[place] != letters & 255:
            return False
        letters >>= 8
        place -= 1
    return True


@compiled
def _is_key(data, i):  # noqa: PLR0911 - one for each prefix
    """Whether a prefix of keys is around its rarest character, at `i`: _ - K I S J."""
    byte = data[i]
    if i + 16 >= data.size or i < 1:
        return False
    if byte == 45 and data[i + 1] == 45:  # -----BEGIN
        return data[i - 1] != 45 and data[i + 4] == 45 and data[i + 5] == 66 and data[i + 9] == 78
    if not (_is_word(data[i + 1]) and _is_word(data[i + 2]) and _is_word(data[i + 8])):
        return False
    if byte == 95:
        if _ends(data, i - 1, GH) or _ends(data, i, HF) or _ends(data, i, NPM) or _ends(data, i, WHSEC):
            return True
        stripe = _ends(data, i, SK) or _ends(data, i, RK) or _ends(data, i, PK)
        return _ends(data, i, GITHUB_PAT) or (stripe and (data[i + 1] == 108 or data[i + 1] == 116))
    if byte == 45:
        return _ends(data, i, GLPAT) or _ends(data, i - 1, XOX) or _ends(data, i, SK)
    if byte in (75, 83):  # AKIA, ASIA
        return data[i - 1] == 65 and data[i + 1] == 73 and data[i + 2] == 65
    if byte == 73:  # AIza
        return data[i - 1] == 65 and data[i + 1] == 122 and data[i + 2] == 97
    return data[i - 1] == 121 and i > 1 and data[i - 2] == 101  # eyJ


@compiled
def _is_assigned(data, i):
    """Whether the name before `=` or `:` ends as names of secrets do: password, secret, token, key, pwd, passwd."""
    place = i - 1
    while place >= 0 and i - place < 4 and data[place] in (32, 34, 39):
        place -= 1
    if place < 2:
        return False
    last, before = data[place] | 32, data[place - 1] | 32
    return (
        (last == 100 and before in (114, 119))  # password passwd pwd
        or (last == 116 and before == 101)  # secret
        or (last == 110 and before == 101)  # token
        or (last == 121 and before == 101)  # key
    )


@compiled
def _is_house(data, start, end, streets):
    """Whether a word for street may be in the line, up to 60 bytes before the number or after it."""
    place, least = start - 3, max(0, start - 60)
    while place >= least and data[place + 2] != 10:
        if streets[(np.int64(data[place]) * 961 + np.int64(data[place + 1]) * 31 + data[place + 2]) & 8191] & 1:
            return True
        place -= 1
    if end + 1 < data.size and _is_word(data[end]) and not _is_word(data[end + 1]):  # 12a
        end += 1
    while end < data.size and end - start < 8 and (data[end] == 32 or data[end] == 44):
        end += 1
    if end < data.size and data[end] in (114, 97, 98, 105, 113, 99, 112):  # rue avenue bis impasse quai cours place
        return end + 3 < data.size and data[end - 1] == 32
    most = min(data.size - 2, end + 60)
    if end >= most or not (65 <= data[end] <= 90 or data[end] == 195):
        return False
    while end < most and data[end] != 10:
        if streets[(np.int64(data[end]) * 961 + np.int64(data[end + 1]) * 31 + data[end + 2]) & 8191] & 2:
            return True
        end += 1
    return False


@compiled
def _group_start(data, colon):
    """Start of the hexadecimal group before a colon; -1 where a word or another group precedes it."""
    first = colon
    while first > 0 and colon - first < 5 and _is_hex(data[first - 1]):
        first -= 1
    if first > 0 and (_is_word(data[first - 1]) or data[first - 1] in (46, 58)):
        return -1
    return first


@compiled
def _is_colon(data, colon):
    """Whether this may be the first colon of an IPv6 address: a second one follows within five bytes."""
    if _group_start(data, colon) < 0:
        return False
    for place in range(colon + 1, min(data.size, colon + 6)):
        if data[place] == 58:
            return True
        if not _is_hex(data[place]):
            return False
    return False


@compiled
def find_anchors(data, classes, streets, out):  # noqa: PLR0912 - one for each kind
    """Fill `out` int64 [anchors, 2] with (position, kind), sorted; returns their number, -1 if `out` is too short."""
    count, i, size = 0, 0, data.size
    while i < size:
        kind = classes[data[i]]
        if kind == _NONE:
            i += 1
            continue
        if count + 3 > out.shape[0]:
            return -1
        before = data[i - 1] if i > 0 else np.uint8(32)
        if kind == _DIGIT:
            end, digits, dots = _number(data, i)
            boundary = not _is_word(before) and before < 128
            inside = before in (32, 45, 46, 47) and i > 1 and 48 <= data[i - 2] <= 57
            first = _letters_before(data, i) if (65 <= before <= 90 or before == 32) else -1
            if first >= 0:
                out[count, 0], out[count, 1] = first, LETTERS
                count += 1
            if boundary and ((digits >= _LEAST_DIGITS and not inside) or (dots >= 3 and before not in (45, 46, 47))):
                out[count, 0], out[count, 1] = i, NUMBER
                count += 1
            if boundary and before in (32, 10, 44) and end - i <= 5 and _is_house(data, i, end, streets):
                out[count, 0], out[count, 1] = i, HOUSE
                count += 1
            i = end
            continue
        if kind == _AT:
            if i + 1 < size and _is_word(before) and _is_word(data[i + 1]):
                out[count, 0], out[count, 1] = i, AT
                count += 1
        elif kind == _KEY:
            if _is_key(data, i):
                out[count, 0], out[count, 1] = i, KEY
                count += 1
        else:
            if _is_assigned(data, i):
                out[count, 0], out[count, 1] = i, ASSIGNED
                count += 1
            if kind == _COLON and _is_colon(data, i):
                out[count, 0], out[count, 1] = i, COLON
                count += 1
        i += 1
    return count
