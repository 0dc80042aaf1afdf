"""The charset of a web page, by the HTML standard."""

import pytest

from hornbook.text.ingest.formats.web.charset import page_charset

TRUE = '<meta charset="utf-8">'


@pytest.mark.parametrize(
    ("page", "charset"),
    [
        ('<!-- <meta charset="koi8-r"> -->' + TRUE, "utf-8"),
        ("<!-- <meta charset='koi8-r'> --!>" + TRUE, "utf-8"),
        ("<script>document.write('<meta charset=\"koi8-r\">')</script>" + TRUE, "utf-8"),
        ("<style>/* <meta charset=koi8-r> */</style>" + TRUE, "utf-8"),
        ("<title><meta charset=koi8-r></title>" + TRUE, "utf-8"),
        ('<meta name="description" content="text/html; charset=koi8-r">' + TRUE, "utf-8"),
        ('<meta name="charset=koi8-r">' + TRUE, "utf-8"),
        ('<a title="<meta charset=koi8-r>">' + TRUE, "utf-8"),
        ("<metax charset=koi8-r>" + TRUE, "utf-8"),
        ('<meta charset="nobody-knows">' + TRUE, "utf-8"),
        ('<meta data-charset="koi8-r">' + TRUE, "utf-8"),
        ("<meta charset='utf-16'>", "utf-8"),
        ("<meta charset=x-user-defined>", "windows-1252"),
        ("<META content='text/html; CHARSET = \"koi8-r\"' HTTP-EQUIV=Content-Type>", "koi8-r"),
        ("<meta http-equiv=refresh content='charset=koi8-r'>", ""),
        ("<script>document.write('<meta charset=koi8-r>')</script>", "koi8-r"),
        ("<p>" * 2000 + "<meta charset=koi8-r>", "koi8-r"),
        ("<?xml version='1.0' encoding='koi8-r'?><html>", "koi8-r"),
        ("<?xml version='1.0' encoding='koi8-r'?>" + TRUE, "utf-8"),
        ("<meta charset=koi8-r", ""),
        ("", ""),
    ],
)
def test_a_page_says_its_charset_in_a_meta_element_alone(page: str, charset: str):
    assert page_charset(page.encode()) == charset


def test_a_mark_goes_before_the_transport_and_that_before_the_page():
    assert page_charset(b"\xef\xbb\xbf" + TRUE.encode(), "koi8-r") == "utf-8"
    assert page_charset(b"\xff\xfe<\0", "koi8-r") == "utf-16-le"
    assert page_charset(TRUE.encode(), "koi8-r") == "koi8-r"
    assert page_charset("<?x".encode("utf-16-be")) == "utf-16-be"


def test_a_transport_that_names_nothing_leaves_it_to_the_page():
    assert page_charset(b"<meta charset=koi8-r>", "none") == "koi8-r"
    assert page_charset("caf\u00e9".encode(), "none") == ""
    assert page_charset(b"caf\xe9", "none") == "none"  # no UTF-8 either: the reason is that nobody knows `none`
