"""Parsing untrusted JSON: any fault is one error, and parsing takes linear time.

The standard library accepts NaN and Infinity, turns 1e999 into Infinity, keeps the last of repeated keys, and raises
RecursionError for deeply nested arrays.
"""

import json
import math
from typing import Any, NoReturn


class InvalidJson(ValueError):
    """The text is not JSON, or is ambiguous."""


class DuplicateKey(InvalidJson):
    """An object names a key twice. The text of the error is the key."""


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """`object_pairs_hook` of the json module: DuplicateKey where a key occurs twice."""
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise DuplicateKey(name)
            seen.add(name)
    return found


def parse_json(data: bytes | str) -> Any:
    """The value of a JSON text (bytes are UTF-8).

    Raises InvalidJson: no JSON, a key twice in an object, nested too deeply, a number that is not finite.
    """
    try:
        text = data if isinstance(data, str) else data.decode("utf-8-sig")
        return json.loads(text, object_pairs_hook=unique_keys, parse_constant=_refuse, parse_float=_finite)
    except DuplicateKey as error:
        raise InvalidJson(f"the key {str(error)[:60]!a} occurs twice") from None
    except InvalidJson:
        raise
    except RecursionError:
        raise InvalidJson("nested too deep") from None
    except ValueError as error:  # of the codec, of the json module, of numbers with thousands of digits
        raise InvalidJson(str(error)[:200].encode("ascii", "backslashreplace").decode()) from error


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise InvalidJson(f"the number {text[:20]} is too large")
    return value


def _refuse(name: str) -> NoReturn:
    raise InvalidJson(f"{name} is no number in JSON")
