"""Street addresses around a house number, in nine languages. A heuristic: it needs the word for street and a name with
a capital, so it misses many addresses and is rarely wrong.
"""

import re

_NAME = "(?:[A-Z\u00c0-\u00de][\\w'.\u2019-]{0,24})"
_AFTER = re.compile(  # 12 Main Street; 12 bis, rue de la Paix
    rf"\d{{1,5}}[A-Za-z]?(?:(?: (?:[NSEW]\.?|North|South|East|West))? {_NAME}(?: {_NAME}){{0,2}} "
    r"(?:Street|St\.?|Road|Rd\.?|Avenue|Ave\.?|Lane|Ln\.?|Drive|Dr\.?|Boulevard|Blvd\.?|Terrace|Crescent|Square|Close)"
    r"(?!\w)(?:,? (?:Apt|Suite|Unit|#)\.? ?\w{1,5})?"
    r"|(?: ?(?:bis|ter))?,? (?:rue|avenue|boulevard|impasse|all\u00e9e|quai|chemin|cours|place|route) "
    rf"(?:(?:de la|de l'|de|des|du|d'|la|le) ?)?{_NAME}(?:[ -]{_NAME}){{0,3}})"
)
_BEFORE = re.compile(  # Hauptstrasse 12; Calle Mayor, 12; Via Roma 12
    "(?:(?:[A-Z\u00c4\u00d6\u00dc][a-z\u00e4\u00f6\u00fc\u00df]{1,24}(?:stra\u00dfe|strasse|str\\.|gasse|allee|platz|weg|damm|ufer|straat|laan|plein|gracht))"
    rf"|{_NAME} (?:Stra\u00dfe|Strasse|Allee|Platz|Weg|Straat|Laan)"
    "|(?:Calle|Avenida|Avda\\.|Plaza|Paseo|Via|Viale|Piazza|Corso|Rua|Pra\u00e7a|Travessa|ul\\.|al\\."
    "|\u0443\u043b\\.|\u0443\u043b\u0438\u0446\u0430|\u043f\u0440\\.|\u043f\u0440\u043e\u0441\u043f\u0435\u043a\u0442) "
    r"(?:(?:de la|de los|de|del|della|dei|do|da|dos|das|di) )?"
    "(?:[A-Z\u00c0-\u00de\u0104-\u017b\u0410-\u042f][\\w'.-]{1,24})"
    "(?: (?:(?:de|da|do|di|del) )?[A-Z\u00c0-\u00de\u0410-\u042f][\\w'.-]{1,24}){0,3})"
    "(?:,? (?:n\u00ba |n\\. |nr\\. |\u0434\\. ?)?)\\Z"
)
_NUMBER = re.compile(rb"\d{1,4}(?:[a-z](?!\w)|[/-]\d{1,3})?(?![\w:%]|[.,]\d)")
_WINDOW = 80


def street(data: bytes, place: int, least: int) -> tuple[int, int, str] | None:
    """The address with its house number at `place`: the street follows it (English, French) or precedes it."""
    found = _AFTER.match(data[place : place + _WINDOW].decode("utf-8", "ignore"))
    if found:
        return place, place + len(found.group().encode()), "address"
    number = _NUMBER.match(data, place, place + 12)
    if number is None:
        return None
    before = data[max(least, place - _WINDOW) : place].decode("utf-8", "ignore")
    found = _BEFORE.search(before)
    if found is None or (found.start() > 0 and before[found.start() - 1].isalnum()):
        return None
    return place - len(found.group().encode()), number.end(), "address"
