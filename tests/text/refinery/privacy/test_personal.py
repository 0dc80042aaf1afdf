"""Personal data: planted truth in six languages, check digits one digit off, and text made to be slow."""

import pytest

from hornbook.errors import HornbookError
from hornbook.text.config.content import PersonalConfig
from hornbook.text.ingest.document import Document
from hornbook.text.refinery.privacy import check_digits
from hornbook.text.refinery.privacy.personal import Personal
from tests.text.refinery.privacy.planted_personal import MAKERS, planted, scores
from tests.text.refinery.running import least_seconds

FLOORS = dict.fromkeys(MAKERS, (1.0, 1.0)) | {"phone": (0.97, 0.97), "address": (0.97, 0.95)}
"""Least precision and recall. Where no check digit decides, forms of numbers may meet."""


def found(text: str, **options: object) -> list[tuple[str, str]]:
    data = text.encode()
    step = Personal(PersonalConfig(**options))  # type: ignore[arg-type]
    return [(kind, data[start:end].decode()) for start, end, kind in step.find(data)]


@pytest.mark.parametrize("language", ["en", "de", "fr", "es", "ru", "zh"])
def test_planted_truth(language: str):
    step = Personal(PersonalConfig())

    def find(text: str) -> list[tuple[str, str]]:
        data = text.encode()
        return [(kind, data[start:end].decode()) for start, end, kind in step.find(data)]

    figures = scores(find, [each for each in planted(120, seed=3) if each.language == language])
    for kind, (precision, recall) in FLOORS.items():
        assert figures[kind]["precision"] >= precision, kind
        assert figures[kind]["recall"] >= recall, kind


@pytest.mark.parametrize(
    ("rule", "good"),
    [  # published examples
        (check_digits.luhn, "79927398713"),
        (check_digits.iban, "GB29NWBK60161331926819"),
        (check_digits.de_tax, "86095742719"),
        (check_digits.fr_nir, "295109912611193"),
        (check_digits.es_dni, "12345678Z"),
        (check_digits.nl_bsn, "111222333"),
        (check_digits.br_cpf, "52998224725"),
        (check_digits.in_aadhaar, "234123412346"),
        (check_digits.pl_pesel, "44051401359"),
        (check_digits.cn_resident, "11010519491231002X"),
        (check_digits.it_codice, "RSSMRA85T10A562S"),
    ],
)
def test_one_wrong_digit_is_seen(rule, good: str):
    assert rule(good)
    for place, letter in enumerate(good):
        if letter.isdigit():
            wrong = f"{good[:place]}{(int(letter) + 1) % 10}{good[place + 1 :]}"
            assert not rule(wrong), wrong


def test_redaction_keeps_all_else():
    step = Personal(PersonalConfig(placeholders={"ip": "[ip]"}))
    text, counts = step.edit(Document("\u4f60 m\u00fcller@example.de \u00fc 8.8.8.8, 10.0.0.1", "1", "s"))
    assert text == "\u4f60 <EMAIL> \u00fc [ip], 10.0.0.1"
    assert dict(zip(step.counters, counts, strict=True)) == {kind: int(kind in ("email", "ip")) for kind in MAKERS}


def test_detect_and_drop():
    document = Document("Call 212-555-0123.", "1", "s")
    text, counts = Personal(PersonalConfig(action="detect")).edit(document)
    assert (text, sum(counts)) == (document.text, 1)
    assert Personal(PersonalConfig(action="drop")).edit(document)[0] is None
    assert Personal(PersonalConfig(action="drop", kinds=["email"])).edit(document)[0] == document.text
    with pytest.raises((ValueError, HornbookError), match="not among `kinds`"):
        PersonalConfig(kinds=["email"], placeholders={"ip": "x"})


def test_addresses_of_networks():
    text = "10.0.0.1 127.0.0.1 8.8.4.4 fe80::12 2a00:1450:4001::200e std::vector 12:30:45 version 1.2.3.4"
    assert [value for _, value in found(text)] == ["8.8.4.4", "2a00:1450:4001::200e"]
    assert [value for _, value in found(text, ip="all")] == [
        *("10.0.0.1", "127.0.0.1", "8.8.4.4", "fe80::12"),
        "2a00:1450:4001::200e",
    ]


def test_weak_check_digits_need_their_word():
    assert found("number 111222333 here") == []
    assert found("BSN: 111222333 here") == [("national_id", "111222333")]


def test_what_follows_an_iban_is_none_of_it():
    spelled, plain = "ES91 2100 0418 4502 0005 1332", "DE89370400440532013000"
    assert found(f"IBAN {spelled} BIC CAIX, {plain} BIC") == [("iban", spelled), ("iban", plain)]
    assert found(f"IBAN {plain[:-1]}1") == []


def test_private_keys_go_whole():
    pem = "-----BEGIN PRIVATE KEY-----\n" + "QUJD" * 40 + "\n-----END PRIVATE KEY-----"
    assert found(f"x\n{pem}\ny") == [("key", pem)]
    assert found("secret = 'aB3dE6gH9jK2'") == [("key", "aB3dE6gH9jK2")]
    assert found("secret = os.environ['SECRET_TOKEN_2']") == []


@pytest.mark.parametrize(
    "piece",
    ["a@", "a.", "@", "1 ", "1.", "1", "00", "(0", "+1", "::", "a:", "AB12", "-----BEGIN PRIVATE KEY-----", "eyJa",
     "password=", "ghp_a", "1 Main ", "Via A ", "A B C D ", "12 rue A ", "x" * 50 + "@", "4111 1111 "],
)  # fmt: skip
def test_time_is_linear(piece: str):
    finder = Personal(PersonalConfig())
    finder.find(b"warm 1")

    def seconds(size: int, enough: float = 0.0) -> float:
        data = (piece * (size // len(piece) + 1))[:size].encode()
        return least_seconds(lambda: finder.find(data), enough)

    most = 64 * seconds(10_000) + 0.02  # linear: 16 times, quadratic: 256
    assert seconds(160_000, most) < most
