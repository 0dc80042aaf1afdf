"""Damage that is undone, damage that is counted, and good text that must stay as it is."""

import html

import pytest

from hornbook.text.config.content import RepairConfig
from hornbook.text.ingest.document import Document
from hornbook.text.refinery.steps.repair import Repair
from tests.text.refinery.running import least_seconds

GOOD = [
    "Der Gr\u00f6\u00dfe nach: \u00c4pfel, \u00d6l, \u00dcbermut"
    " \u2013 \u201eAch\u201c. STRASSE \u00c4\u00d6\u00dc\u00ae",
    "\u00ab\u00a0mode d\u00e9grad\u00e9\u00a0\u00bb, \u00ab\u00a0ici\u00a0\u00bb\u00a0:"
    " \u00e0 c\u00f4t\u00e9, \u00c0 la carte\u2026 CAF\u00c9\u2122",
    "El ni\u00f1o pregunt\u00f3: \u00bfqu\u00e9 pas\u00f3? \u00a1Ah\u00ed! ESPA\u00d1A\u00bb",
    "S\u00c3O PAULO, N\u00c3O\u00bb, CORA\u00c7\u00c3O\u201d, irm\u00e3\u00bb",
    "\u041f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440! \u00ab\u041a\u0430\u043a?\u00bb",
    "\u4f60\u597d\uff0c\u4e16\u754c\u3002 \u3053\u3093\u306b\u3061\u306f \uc548\ub155",
    "\u0645\u0631\u062d\u0628\u0627 \u0628\u0627\u0644\u0639\u060c \u0645\u06cc\u200c\u062e\u0648",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467 \u0928\u094d\u200d \u2603\ufe0f 5 \u00d7 3\u00b2 \u2264 50 \u00b0C",
]


def repaired(text: str, **options: bool) -> tuple[str, dict[str, int]]:
    step = Repair(RepairConfig(**options))
    text, counts = step.edit(Document(text, "1", "s"))
    return text, dict(zip(step.counters, counts, strict=True))


def misread(text: str, encoding: str) -> str:
    data = text.encode()
    if encoding == "latin-1":
        return data.decode("latin-1")
    return "".join(bytes([each]).decode("cp1252", "ignore") or chr(each) for each in data)


@pytest.mark.parametrize("text", GOOD)
def test_good_text_stays(text: str):
    assert repaired(text) == (text, dict.fromkeys(Repair.counters, 0))


@pytest.mark.parametrize("encoding", ["cp1252", "latin-1"])
@pytest.mark.parametrize("text", GOOD[:3] + GOOD[4:7])
def test_misread_text_is_mended(text: str, encoding: str):
    damaged = misread(text, encoding)
    assert damaged != text
    mended, counts = repaired(damaged)
    assert mended == text
    assert counts["mojibake"] > 0
    assert repaired(misread(damaged, encoding))[0] == text


@pytest.mark.parametrize(
    ("text", "mended"),  # published examples of the damage
    [
        ("The Mona Lisa doesn\u00e2\u20ac\u2122t have eyebrows.", "The Mona Lisa doesn\u2019t have eyebrows."),
        ("\u00e2\u20ac\u0153quoted\u00e2\u20ac\u009d", "\u201cquoted\u201d"),
        ("schÃ¶n", "sch\u00f6n"),
        ("Voil\u00c3\u00a0!", "Voil\u00e0!"),
        ("Ã§a va, trÃ¨s bien", "\u00e7a va, tr\u00e8s bien"),
    ],
)
def test_damage_as_it_occurs(text: str, mended: str):
    assert repaired(text)[0] == mended


def test_entities_where_no_markup_stands():
    text = "Fish &amp; chips &#8364;5 &eacute;t&eacute; &unknown;"
    assert repaired(text) == (html.unescape(text), {**dict.fromkeys(Repair.counters, 0), "entities": 4})
    assert repaired("<p>a &amp; b</p>")[0] == "<p>a &amp; b</p>"
    assert repaired(text, entities=False)[0] == text


def test_what_nobody_sees_goes_and_is_counted():
    text, counts = repaired("a\u200bb\u00adc\u202ed\ufeffe \ue000f \ufffdg")
    assert text == "abcde f \ufffdg"
    assert counts == {"mojibake": 0, "entities": 0, "hidden": 4, "private": 1, "replacement": 1}


@pytest.mark.parametrize("piece", ["\u00c3", "\u00c3\u00a4", "\u00e2\u20ac", "&amp", "&#", "\u200d", "\u00f0\u0178"])
def test_time_is_linear(piece: str):
    def seconds(count: int) -> float:
        text = piece * count
        return least_seconds(lambda: repaired(text))

    assert seconds(80_000) < 64 * seconds(5_000) + 0.02  # linear: 16 times, quadratic: 256
