"""Bytes to text: UTF-8, what a byte order mark says, or the charset that a file declares, which may be any name."""

import codecs
from typing import Any

from hornbook.text.ingest.compressions import DamagedStream, Stream, decompressed

BOM = b"\xef\xbb\xbf"
_WIDE = {codecs.BOM_UTF32_LE: "utf-32", codecs.BOM_UTF32_BE: "utf-32", b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}
"""Byte order marks of encodings other than UTF-8, the longer ones first, since one starts with another."""
_NOT_DECLARED = frozenset(
    ["idna", "punycode", "unicode_escape", "raw_unicode_escape", "utf-7", "undefined", "mbcs", "oem", "charmap"]
)
"""Python codecs that no text is stored in, by their own names; some take quadratic time."""
_LONGEST_NAME = 40


def is_wide(beginning: bytes) -> bool:
    """Whether a text with this beginning is UTF-16 or UTF-32, whose line ends are longer than a byte."""
    return beginning.startswith(tuple(_WIDE))


class _Utf8:
    """A text as UTF-8; UTF-16 and UTF-32 that start with a byte order mark are recoded."""

    def __init__(self, stream: Stream) -> None:
        self._stream, self._begun = stream, False
        self._decoder: codecs.IncrementalDecoder | None = None
        self._name, self._position = "", 0

    def read(self, size: int, /) -> bytes:
        data = self._stream.read(size)
        if not self._begun:
            self._begun = True
            while len(data) < 4 and (more := self._stream.read(4)):
                data += more
            self._name = next((name for mark, name in _WIDE.items() if data.startswith(mark)), "")
            self._decoder = codecs.getincrementaldecoder(self._name)() if self._name else None
        return data if self._decoder is None else self._recode(data, size)

    def _recode(self, data: bytes, size: int) -> bytes:
        assert self._decoder is not None
        while True:
            try:
                text = self._decoder.decode(data, final=not data)
            except UnicodeDecodeError as error:
                raise DamagedStream(f"invalid {self._name}: near byte {self._position + error.start}") from error
            self._position += len(data)
            if text or not data:
                return text.encode()
            data = self._stream.read(size)


def plain_text(file: Stream, compression: str | None) -> Stream:
    """The text of a file as UTF-8, whatever it is stored as. Reading raises DamagedStream."""
    return _Utf8(decompressed(file, compression))


class UnfitRow(Exception):
    """A row cannot become a document; the text is the reason. `dropped` where nothing is wrong with it."""

    def __init__(self, reason: str = "", dropped: bool = False) -> None:
        super().__init__(reason)
        self.dropped = dropped


def why_not_utf8(error: UnicodeDecodeError) -> str:
    """Why bytes are not UTF-8: the first byte that is wrong."""
    return f"invalid UTF-8: byte {error.start} is 0x{error.object[error.start]:02x}"


def decode_utf8(data: bytes) -> str:
    """The text of bytes. Raises UnfitRow."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise UnfitRow(why_not_utf8(error)) from error


def decode_declared(data: bytes, charset: str, first: int = 0) -> str:
    """The text of bytes in a declared charset. `first`: their offset in the file, for messages. Raises UnfitRow."""
    unknown = UnfitRow(f"unknown charset: {charset[:_LONGEST_NAME]!a}")
    if len(charset) > _LONGEST_NAME:
        raise unknown
    try:
        codec = codecs.lookup(charset)
        if codec.name in _NOT_DECLARED:
            raise unknown
        return data.decode(codec.name)
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise UnfitRow(f"invalid {error.encoding}: byte {first + error.start} is 0x{byte:02x}") from error
    except (LookupError, ValueError) as error:  # names with NUL; codecs from bytes to bytes; codecs that refuse
        raise unknown from error


def is_valid_unicode(text: str) -> bool:
    """Whether a text can be written as UTF-8 (it has no lone surrogates)."""
    try:
        return text.isascii() or bool(text.encode())
    except UnicodeEncodeError:
        return False


def check_text(text: Any) -> str:
    """The text. Raises UnfitRow for what is no string, or cannot be written as UTF-8."""
    if not isinstance(text, str):
        raise UnfitRow(f"text is not a string: it is a JSON {json_name(text)}")
    if not is_valid_unicode(text):
        raise UnfitRow("lone surrogate: the text is not valid Unicode")
    return text


def json_name(value: Any) -> str:
    """What a value is called in JSON."""
    names = {bool: "boolean", int: "number", float: "number", str: "string", list: "array", dict: "object"}
    return "null" if value is None else names.get(type(value), type(value).__name__)
