"""Bytes to text: UTF-8, what a byte order mark says, or a charset that the user or the file names."""

import codecs
import re
from contextlib import suppress
from functools import cache
from typing import Any

from hornbook.text.ingest.compressions import DamagedStream, Stream, decompressed

BOM = b"\xef\xbb\xbf"
_MARKS = {
    codecs.BOM_UTF32_LE: "utf-32-le",
    codecs.BOM_UTF32_BE: "utf-32-be",
    codecs.BOM_UTF16_LE: "utf-16-le",
    codecs.BOM_UTF16_BE: "utf-16-be",
    BOM: "utf-8",
}
"""Byte order marks, the longer ones of UTF-32 first, since one starts with another."""
_NOT_DECLARED = frozenset(
    ["idna", "punycode", "unicode_escape", "raw_unicode_escape", "utf_7", "undefined", "mbcs", "oem", "charmap"]
)
"""Python codecs that no text is stored in, by their own names; some take quadratic time."""
_WIDER = {"gbk": "gb18030", "iso-2022-jp": "iso2022_jp_ext"}
"""The web's encodings that a wider codec of Python's decodes as the web does."""
_LONGEST_NAME = 40
_LABEL = re.compile(rf"[ \t\n\f\r]*[\w.:-]{{1,{_LONGEST_NAME}}}[ \t\n\f\r]*", re.ASCII)
_BEGINNING = 2**16
_CONTROLS = bytes(range(32))
_ISO_2022 = re.compile(rb"\x1b(?:\$(?:[@AB]|[()*+-][@-Q])|\([IJ]|\.[AF])|~\{(?:[!-w][!-~]){2,}~\}")
"""Sequences that shift to another character set of ISO 2022 or HZ; none is in the colours of terminals."""
_UTF_7 = re.compile(rb"\+[A-Za-z0-9+/]{3,}-?")


REMEDY = "; for another encoding: --encoding NAME, or text.sources.SOURCE.encoding"


def mark_of(beginning: bytes) -> str:
    """The encoding that a byte order mark names; empty where there is none."""
    return next((name for mark, name in _MARKS.items() if beginning.startswith(mark)), "")


@cache
def codec_of(label: str, *, web: bool = False) -> codecs.CodecInfo | None:
    """The codec of a label as the web means it (Encoding standard, 4.2), else as Python does; None where unknown.

    web: only the web's labels count.
    """
    if not _LABEL.fullmatch(label):
        return None
    import webencodings  # here: a machine that trains, and reads no pages, need not have it

    encoding = webencodings.lookup(label)
    if encoding is not None and encoding.name == "x-user-defined":
        return encoding.codec_info
    if encoding is not None and encoding.name != "replacement":
        return codecs.lookup(_WIDER.get(encoding.name, encoding.codec_info.name))
    try:
        codec = codecs.lookup("undefined" if web else label.strip())
        text = isinstance(codec.decode(b"")[0], str) and codec.name.replace("-", "_") not in _NOT_DECLARED
    except (LookupError, ValueError, TypeError):  # names with NUL; codecs that refuse
        return None
    return codec if text else None


def _as_on_the_web(error: UnicodeError) -> tuple[str, int]:
    """Decode what Python's tables lack and the web's have: C1 controls, the euro sign of GBK, NEC's and IBM's signs."""
    if not isinstance(error, UnicodeDecodeError):
        raise error
    data, start = error.object, error.start
    if error.encoding == "charmap" and 0x80 <= data[start] < 0xA0:
        return chr(data[start]), start + 1
    if error.encoding == "gb18030" and data[start] == 0x80:
        return "\u20ac", start + 1
    pair = bytes(byte ^ _JAPANESE.get(error.encoding, 0) for byte in data[start : start + 2])
    if error.encoding in _JAPANESE and len(pair) == 2 and min(pair) > 0xA0:
        row, cell = pair[0] - 0xA1, pair[1] - 0xA1  # of JIS X 0208, whose places Shift_JIS has two rows a lead byte
        lead = row // 2 + (0x81 if row < 62 else 0xC1)
        trail = cell + (0x9F if row % 2 else 0x40 + (cell > 62))
        with suppress(UnicodeDecodeError):
            return bytes((lead, trail)).decode("cp932"), start + 2
    raise error


codecs.register_error("hornbook-web", _as_on_the_web)


_JAPANESE = {"euc_jp": 0, "iso2022_jp_ext": 0x80}
"""Codecs of JIS X 0208, and the bit in which their bytes differ from those of EUC."""


def starts_wide(beginning: bytes, encoding: str = "") -> bool:
    """Whether a text with this beginning may have line ends that are no single byte of LF."""
    return bool(encoding) or mark_of(beginning) not in ("", "utf-8") or bool(_why_wide(beginning))


def _why_wide(data: bytes) -> str:
    """Why bytes are UTF-16 or UTF-32 without a mark, though they may be valid UTF-8; empty where they are not.

    Every second byte of UTF-16 is a control in many scripts, and NUL beside blanks and line ends in all of them.
    """
    data = data[:_BEGINNING]
    wide = len(data) > 3 and data.count(0) * 4 >= len(data)
    for half in (data[::2], data[1::2]) if len(data) > 7 and not wide else ():
        others = half.translate(None, _CONTROLS)
        wide |= len(others) * 10 <= len(half) and bool(half.translate(None, others + b"\t\n\r"))
    return f"not UTF-8: it has the NULs and controls of UTF-16 or UTF-32 without a mark{REMEDY}" if wide else ""


def _why_not_utf8_text(data: bytes) -> str:
    """Why valid UTF-8 is no text in UTF-8: it is written in an encoding of seven bits; empty where it is text."""
    if data.isascii() and _is_utf_7(data):
        return f"not UTF-8: its plus signs begin characters of UTF-7{REMEDY}"
    if (b"\x1b" in data or b"~{" in data) and (shift := _ISO_2022.search(data)) is not None:
        return f"not UTF-8: it shifts between character sets as ISO 2022 and HZ do, at byte {shift.start()}{REMEDY}"
    return ""


def _is_utf_7(data: bytes) -> bool:
    """Whether all of at least five different runs after plus signs are characters, which chance does not do."""
    runs = set(_UTF_7.findall(data[:_BEGINNING])) if b"+" in data else set()
    try:
        return len(runs) >= 5 and all(run.decode("utf-7").isprintable() for run in runs)
    except UnicodeDecodeError:
        return False


class _Utf8:
    """A text as UTF-8; other encodings, by a byte order mark or as the user says, are recoded."""

    def __init__(self, stream: Stream, encoding: str) -> None:
        self._stream, self._begun, self._encoding = stream, False, encoding
        self._decoder: codecs.IncrementalDecoder | None = None
        self._name, self._position = "", 0

    def read(self, size: int, /) -> bytes:
        data = self._stream.read(size)
        if not self._begun:
            self._begun = True
            data = self._begin(data)
        return data if self._decoder is None else self._recode(data, size)

    def _begin(self, data: bytes) -> bytes:
        while len(data) < 4 and (more := self._stream.read(4)):
            data += more
        mark = mark_of(data)
        self._name = mark or self._encoding
        if not self._name and (reason := _why_wide(data)):
            raise DamagedStream(reason)
        codec = codec_of(self._name or "utf-8")
        assert codec is not None  # settings are checked
        assert codec.incrementaldecoder is not None
        if codec.name != "utf-8":
            self._decoder = codec.incrementaldecoder("hornbook-web")
            self._position = next((len(start) for start, name in _MARKS.items() if name == mark), 0)
            data = data[self._position :]
        return data

    def _recode(self, data: bytes, size: int) -> bytes:
        assert self._decoder is not None
        while True:
            try:
                text = self._decoder.decode(data, final=not data)
            except UnicodeDecodeError as error:
                raise DamagedStream(f"invalid {self._name}: near byte {self._position + error.start}") from error
            self._position += len(data)
            if text or not data:
                return text.encode("utf-8", "replace")
            data = self._stream.read(size)


def plain_text(file: Stream, compression: str | None, encoding: str = "") -> Stream:
    """The text of a file as UTF-8. `encoding`: what the user says it is stored in. Reading raises DamagedStream."""
    return _Utf8(decompressed(file, compression), encoding)


class UnfitRow(Exception):
    """A row cannot become a document; the text is the reason. `dropped` where nothing is wrong with it."""

    def __init__(self, reason: str = "", dropped: bool = False) -> None:
        super().__init__(reason)
        self.dropped = dropped


def why_not_utf8(error: UnicodeDecodeError) -> str:
    """Why bytes are not UTF-8: the first byte that is wrong."""
    return f"invalid UTF-8: byte {error.start} is 0x{error.object[error.start]:02x}{REMEDY}"


def decode_utf8(data: bytes, encoding: str = "") -> str:
    """The text of bytes. `encoding`: what the user says they were recoded from. Raises UnfitRow."""
    if not encoding and (reason := _why_not_utf8_text(data)):
        raise UnfitRow(reason)
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise UnfitRow(why_not_utf8(error)) from error


def decode_whole(data: bytes) -> str:
    """The text of all bytes of a file or record that names no charset. Raises UnfitRow."""
    if reason := _why_wide(data):
        raise UnfitRow(reason)
    return decode_utf8(data)


def decode_declared(data: bytes, charset: str, first: int = 0) -> str:
    """The text of bytes in a charset, without its mark, which goes before the charset.

    first: their offset in the file, for messages. Raises UnfitRow.
    """
    codec = codec_of(mark_of(data) or charset)
    if codec is None:
        raise UnfitRow(f"unknown charset: {charset[:_LONGEST_NAME]!a}{REMEDY}")
    try:
        return codec.decode(data, "hornbook-web")[0].removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise UnfitRow(f"invalid {codec.name}: byte {first + error.start} is 0x{byte:02x}{REMEDY}") from error


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
