"""Text by the charset that a file declares: a name from outside, which may be anything."""

import codecs

_NOT_DECLARED = frozenset(
    ["idna", "punycode", "unicode_escape", "raw_unicode_escape", "utf-7", "undefined", "mbcs", "oem", "charmap"]
)
"""Codecs of Python that no text has, by their own names; some take quadratic time."""
_LONGEST_NAME = 40


class Undecodable(ValueError):
    """The bytes are not text of that charset, or nobody knows the charset. The text is the reason."""


def decode_declared(data: bytes, charset: str, first: int = 0) -> str:
    """The text of bytes in a declared charset. `first`: where they begin in what messages count bytes of.

    Raises Undecodable.
    """
    unknown = Undecodable(f"unknown charset: {charset[:_LONGEST_NAME]!a}")
    if len(charset) > _LONGEST_NAME:
        raise unknown
    try:
        codec = codecs.lookup(charset)
        if codec.name in _NOT_DECLARED:
            raise unknown
        return data.decode(codec.name)
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise Undecodable(f"invalid {error.encoding}: byte {first + error.start} is 0x{byte:02x}") from error
    except (LookupError, ValueError) as error:  # names with NUL; codecs from bytes to bytes; codecs that refuse
        raise unknown from error
