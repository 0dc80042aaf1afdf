"""Bytes to text: the web's tables, encodings that the user names, and bytes that only look like UTF-8."""

from typing import Any

import pytest

from hornbook.errors import UsageError
from hornbook.text.ingest.charsets import UnfitRow, codec_of, decode_declared
from hornbook.text.ingest.document import Document, Rejected

JAPANESE = "\u3053\u308c\u306f\u65e5\u672c\u8a9e\u306e\u6587\u7ae0\u3067\u3059\u3002"
RUSSIAN = "\u042d\u0442\u043e \u0442\u0435\u043a\u0441\u0442"


@pytest.mark.parametrize(
    ("label", "data", "text"),
    [
        ("shift_jis", b"\x87\x40\xfb\xfc", "\u2460\u9ad9"),
        (" X-SJIS\n", b"\x87\x40", "\u2460"),
        ("windows-31j", b"\x87\x40", "\u2460"),
        ("euc-jp", b"\xad\xa1\xa4\xb3", "\u2460\u3053"),
        ("iso-2022-jp", b"\x1b$B-!$3\x1b(B.\x1b(I1", "\u2460\u3053.\uff71"),
        ("euc-kr", b"\x8c\x63", "\ub620"),
        ("ks_c_5601-1987", b"\x8c\x63", "\ub620"),
        ("windows-949", b"\x8c\x63", "\ub620"),
        ("big5", b"\x87\x40\xa4\xa4", "\u43f0\u4e2d"),
        ("big5-hkscs", b"\xfa\x40", "\U00020547"),
        ("gb2312", b"\x81\x40\x80", "\u4e02\u20ac"),
        ("gbk", b"\x81\x30\x81\x30", "\x80"),
        ("latin1", b"\x93\x81", "\u201c\x81"),
        ("us-ascii", b"\xe9", "\u00e9"),
        ("windows-1251", b"\x98", "\x98"),
        ("x-mac-cyrillic", b"\x80", "\u0410"),
        ("iso-8859-8-i", b"\xe0", "\u05d0"),
        ("windows-874", b"\x80\xa1", "\u20ac\u0e01"),
        ("utf-16", "\ufeffa".encode("utf-16-be"), "a"),
        ("koi8-r", b"\xef\xbb\xbfa", "a"),
        ("cp437", b"\x82", "\u00e9"),
        ("iso-2022-kr", b"\x1b$)C\x0e0!\x0f", "\uac00"),
        ("hz-gb-2312", b"~{VP~}", "\u4e2d"),
    ],
)
def test_labels_are_the_webs(label: str, data: bytes, text: str):
    assert decode_declared(data, label) == text


@pytest.mark.parametrize(
    "label",
    ["punycode", "idna", "rot13", "hex", "unicode_escape", "utf-7", "x" * 50, "a\0b", "\u212aoi8-r", "", 'utf-8"', "?"],
)
def test_names_that_are_no_charset_are_unknown(label: str):
    assert codec_of(label) is None
    with pytest.raises(UnfitRow, match="unknown charset: "):
        decode_declared(b"a", label)


@pytest.mark.parametrize(
    ("label", "data", "reason"),
    [
        ("shift_jis", b"a\x82", "invalid cp932: byte 11 is 0x82"),
        ("windows-1253", b"\xaa", "invalid cp1253: byte 10 is 0xaa"),
        ("euc-jp", b"\xa9\xa9", "invalid euc_jp: byte 10 is 0xa9"),
        ("iso-2022-jp", b"\xad\xa1", "invalid iso2022_jp_ext: byte 10 is 0xad"),
    ],
)
def test_what_the_webs_tables_leave_open_is_damage(label: str, data: bytes, reason: str):
    with pytest.raises(UnfitRow, match=f"{reason}; for another encoding: --encoding NAME"):
        decode_declared(data, label, first=10)


@pytest.mark.parametrize(
    ("text", "encoding"),
    [
        ("plain words", "utf-16-le"),
        ("plain words", "utf-16-be"),
        ("ab", "utf-16-le"),
        (RUSSIAN * 3, "utf-16-le"),
        (RUSSIAN * 3, "utf-16-be"),
        ("\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35\n" * 3, "utf-16-le"),
        ("\u0928\u092e\u0938\u094d\u0924\u0947\n" * 3, "utf-16-be"),
        (JAPANESE, "utf-32-le"),
        ("plain words", "utf-32-be"),
        (JAPANESE, "iso2022_jp"),
        (f"A line.\n{JAPANESE}\n", "iso2022_jp_2"),
        ("\uff71\uff72", "iso2022_jp_ext"),
        ("\ud55c\uad6d\uc5b4", "iso2022_kr"),
        ("\u4e2d\u6587\u7f51", "hz"),
        (RUSSIAN * 3 + "\u043f\u0440 \u0438\u0432 \u0435\u0442", "utf-7"),
    ],
)
@pytest.mark.parametrize("name", ["a.txt", "a.tex", "a.csv", "a.html"])
def test_what_is_valid_by_chance_is_no_utf8(read_bytes: Any, name: str, text: str, encoding: str):
    """Each is read with its name, and never taken for UTF-8 without it."""
    if name == "a.csv":
        text = f"text\n{text.replace(chr(10), ' ')}\n"
        if encoding == "utf-7":
            return  # a row is too short to tell, and csv has no whole
    data = text.encode(encoding)
    rows = read_bytes(name, data)
    assert rows
    assert all(isinstance(row, Rejected) and row.kind in ("not UTF-8", "invalid UTF-8") for row in rows), rows
    assert "--encoding NAME, or text.sources.SOURCE.encoding" in rows[0].reason
    if encoding != "utf-7":
        (row,) = read_bytes(name, data, encoding=encoding)
        assert isinstance(row, Document)
        assert row.text.split()[-1] in text


@pytest.mark.parametrize(
    "text",
    [
        "\x1b[31mred\x1b(B\x1b[m and a shell's $ sign",
        "a\nb\nc\nd\n" * 20,
        "a\tb\tc\t1\t" * 20,
        "one NUL \0 in a text of some words",
        "See Fig.~{1} and {no break~} in LaTeX~{\\em x}",
        "y = a+foo; z = b+bar; C++ +baz +++ 1+2 i+jkl k+mnp q+rst",
        "",
        "\0",
        "\f\n\f\n",
    ],
)
def test_controls_and_signs_of_texts_are_no_other_encoding(read_bytes: Any, text: str):
    (row,) = read_bytes("a.txt", text.encode())
    assert isinstance(row, Document), row.reason
    assert row.text == text


@pytest.mark.parametrize("name", ["a.txt", "a.csv", "a.tsv", "a.jsonl", "a.json", "a.tex", "a.html", "a.txt.gz"])
@pytest.mark.parametrize("encoding", ["windows-1252", "utf-16-le", "shift_jis", "utf-8"])
def test_a_source_may_name_its_encoding(read_bytes: Any, name: str, encoding: str):
    import gzip

    word = {"windows-1252": "caf\u00e9", "utf-16-le": RUSSIAN, "utf-8": RUSSIAN}.get(encoding, JAPANESE)
    whole = {
        "csv": "id,text\n1,{}\n",
        "tsv": "id\ttext\n1\t{}\n",
        "jsonl": '{{"text": "{}"}}\n',
        "json": '[{{"text": "{}"}}]',
    }
    data = whole.get(name.split(".")[1], "{}").format(word).encode(encoding)
    (row,) = read_bytes(name, gzip.compress(data) if name.endswith("gz") else data, encoding=encoding)
    assert isinstance(row, Document), row.reason
    assert row.text == word


def test_the_name_of_an_encoding_is_checked(read_bytes: Any):
    with pytest.raises(UsageError, match="source 's': encoding 'latin-one' is unknown: give a name like windows-1252"):
        read_bytes("a.txt", b"a", encoding="latin-one")
