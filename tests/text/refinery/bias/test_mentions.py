"""Who is mentioned with what: counts against a plain count, files of terms, intervals against resampled documents."""

import itertools
import json
import random
import re
from collections.abc import Sequence
from math import log2
from pathlib import Path

import numpy as np
import pytest

from hornbook.errors import UsageError
from hornbook.text.config.content import SHIPPED, MentionsConfig, RebalanceConfig
from hornbook.text.refinery.bias.associations import MentionSums, associations
from hornbook.text.refinery.bias.mentions import read_terms
from tests.text.refinery.running import columns_of

TERMS = {
    "groups": {"women": ["she", "Mother", "mother in law"], "men": ["he", "brother-in-law"]},
    "attributes": {"nurse": ["nurse", "head nurse"], "law": ["law"], "kind": ["kind", "good at heart"]},
}


def written(path: Path, terms: object = TERMS) -> str:
    path.write_text(json.dumps(terms))
    return str(path)


def plain_counts(text: str, window: int | str) -> dict[str, int]:
    """Pair by pair, from the words of each sentence."""
    sentences = re.split(r"[.!?][)]?\s|\u3002|\n[ \t]*\n", text.lower())
    words = [(word, n) for n, each in enumerate(sentences) for word in re.findall(r"\w+", each)]
    named = [(kind, name, term) for kind, names in TERMS.items() for name, terms in names.items() for term in terms]
    known = sorted(((re.findall(r"\w+", t.lower()), kind, name) for kind, name, t in named), key=lambda e: -len(e[0]))
    found, at = [], 0
    while at < len(words):
        rest = [word for word, _ in words[at:]]
        hit = next((each for each in known if rest[: len(each[0])] == each[0]), None)
        if hit:
            found.append((at if window != "sentence" else words[at][1], hit[1], hit[2]))
        at += len(hit[0]) if hit else 1
    reach = 0 if window == "sentence" else int(window)
    counts: dict[str, int] = {}
    for place, kind, group in found:
        if kind == "groups":
            near = {name for p, k, name in found if k == "attributes" and abs(p - place) <= reach}
            for name in (f"mentions.{group}", *(f"mentions.{group}.{attribute}" for attribute in near)):
                counts[name] = counts.get(name, 0) + 1
    return counts


def random_texts(count: int) -> list[str]:
    draw = random.Random(1)
    terms = [term for names in TERMS.values() for each in names.values() for term in each]
    words = [*terms, "in", "good", "at", "mother", "SHE", "he's", "l\u2019nurse", "the", "caf\u00e9", "x"]
    gaps = [" ", " ", " ", ", ", ". ", ".) ", "\n", "\n\n", "\n \t\n", "! ", "\u3002", ".", " - "]
    return [
        "".join(f"{draw.choice(words)}{draw.choice(gaps)}" for _ in range(draw.randrange(60))) for _ in range(count)
    ]


@pytest.mark.parametrize("window", [1, 3, 10, 1000, "sentence"])
def test_counts_are_those_of_a_plain_count(tmp_path: Path, window: int | str):
    config = MentionsConfig(terms=written(tmp_path / "t.json"), window=window, words="unicode")
    texts = [re.sub(r"(?<=\w)\.(?=\w)", ",", text) for text in random_texts(200)]  # `a.b` is one word
    found = columns_of(config, texts)
    assert len(found) == 8
    expected = [plain_counts(re.sub("['\u2019]", " ", text), window) for text in texts]
    assert sum(map(len, expected)) > 500
    for name, column in found.items():
        assert column.tolist() == [each.get(name, 0) for each in expected], name


def test_what_a_mention_is(tmp_path: Path):
    config = MentionsConfig(terms=written(tmp_path / "t.json"), window="sentence")
    text = 'The nurse said: "SHE is kind." (He left?) Her mother-in-law, a nurse\u2019s friend\nand nurse\n\nhe'
    found = {name: int(column[0]) for name, column in columns_of(config, [text]).items() if column[0]}
    women = {"mentions.women": 2, "mentions.women.nurse": 2, "mentions.women.kind": 1}
    assert found == {**women, "mentions.men": 2}


def test_the_window_is_of_words(tmp_path: Path):
    texts = ["he a b nurse", "nurse a b he", "he a b c nurse"]
    config = MentionsConfig(terms=written(tmp_path / "t.json"), window=3)
    assert columns_of(config, texts)["mentions.men.nurse"].tolist() == [1, 1, 0]


def test_chinese_terms_stand_anywhere(tmp_path: Path):
    terms = {"groups": {"women": ["\u5979"], "men": ["\u4ed6"]}, "attributes": {"nurse": ["\u62a4\u58eb"]}}
    config = MentionsConfig(terms=written(tmp_path / "t.json", terms))
    found = columns_of(config, ["\u5979\u662f\u62a4\u58eb\u3002"])
    assert (found["mentions.women"].tolist(), found["mentions.women.nurse"].tolist()) == ([1], [1])


@pytest.mark.parametrize("language", SHIPPED)
def test_ours_can_be_told_apart(language: str):
    terms = read_terms(SHIPPED[language])
    assert (len(terms.groups), len(terms.attributes) > 20) == (2, True)
    for definition in ("cjk", "unicode", "whitespace"):
        assert len(columns_of(MentionsConfig(terms=language, words=definition), ["x"])) == 2 + 2 * len(terms.attributes)


GROUPS = {"a": ["x"], "b": ["y"]}
WRONG = [
    ({"groups": GROUPS, "attributes": {"c": ["X"]}}, "'X' is in groups.a and in attributes.c: leave it in one"),
    ({"groups": {"a": ["x y"], "b": ["X-y"]}, "attributes": {"c": ["z"]}}, "'X-y' is in groups.a and in groups.b"),
    ({"groups": GROUPS, "attributes": {"c": []}}, "attributes.c: List should have at least 1 item"),
    ({"groups": GROUPS, "attributes": {"c": "nurse"}}, "attributes.c: Input should be a valid list"),
    ({"groups": GROUPS, "attributes": {"c": ["z", 3]}}, "attributes.c.1: Input should be a valid string, found 3"),
    ({"groups": GROUPS, "attributes": {"c": ["z", "--"]}}, "attributes.c: '--' has no word"),
    ({"groups": GROUPS, "attributes": {"c.d": ["z"]}}, "attributes.c.d.[key]: String should match pattern"),
    ({"groups": {"a": ["x"]}, "attributes": {"c": ["z"]}}, "groups: Dictionary should have at least 2 items"),
    ({"groups": GROUPS}, "attributes: Field required"),
    ({"groups": [], "attributes": {}}, "groups: Input should be a valid dictionary"),
    ({"groups": GROUPS, "attributes": {"c": ["z"]}, "names": {}}, "names: Extra inputs are not permitted"),
    (
        {"groups": GROUPS, "attributes": {f"n{n}": [f"z{n}"] for n in range(250)}},
        "are 502 counts per document, more than 500",
    ),
    ([], "Input should be a valid dictionary"),
]


@pytest.mark.parametrize(("terms", "said"), WRONG, ids=[said for _, said in WRONG])
def test_a_wrong_file_is_refused_by_its_key(tmp_path: Path, terms: object, said: str):
    path = written(tmp_path / "t.json", terms)
    with pytest.raises(UsageError, match=re.escape(said)) as error:
        columns_of(MentionsConfig(terms=path), ["x"])
    assert str(error.value).startswith(path)


@pytest.mark.parametrize(
    ("data", "said"),
    [(b"[groups]\nw = ['\xff']", "not UTF-8 text (byte 15)"), (b"groups = [", "is not TOML"), (None, "cannot read")],
)
def test_a_file_that_cannot_be_read(tmp_path: Path, data: bytes | None, said: str):
    path = tmp_path / "t.toml"
    if data is not None:
        path.write_bytes(data)
    with pytest.raises(UsageError, match=re.escape(said)):
        columns_of(MentionsConfig(terms=str(path)), ["x"])


@pytest.mark.parametrize("step", [MentionsConfig, RebalanceConfig])
def test_a_mistyped_language_is_told_which_there_are(step: type[MentionsConfig | RebalanceConfig]):
    with pytest.raises(ValueError, match=r"'eng' is not one of de, en, es, fr: name one, or a .toml"):
        step(terms="eng")
    assert step(terms="eng.toml").path == Path("eng.toml")
    assert step(terms="./eng").path == Path("eng")


def drawn_rows(documents: int, chances: Sequence[Sequence[float]]) -> np.ndarray:
    """Counts of documents with up to five mentions, all of one group: [n, 2 groups + 2 x 2 pairs]."""
    draw = np.random.default_rng(5)
    rows = np.zeros((documents, 6), np.int64)
    for row in rows:
        group, mentions = draw.integers(2), draw.integers(6)
        near = draw.random(2) < chances[group]
        row[group] = mentions
        row[2 + 2 * group : 4 + 2 * group] = mentions * near
    return rows


def test_pmi_is_what_the_formula_says():
    rows = np.array([[30, 0, 20, 3, 0, 0], [0, 60, 0, 0, 40, 10]])
    found = {(each.group, each.attribute): each for each in associations(MentionSums.of(rows), "wm", "ab")}
    assert set(found) == {("w", "a"), ("m", "a")}  # b is expected 13 * 30 / 90 = 4.3 times with w
    for each, together, share in ((found["w", "a"], 20, 30 / 90), (found["m", "a"], 40, 60 / 90)):
        assert each.expected == pytest.approx(60 * share)
        assert each.pmi == pytest.approx(log2(together / 90 / (60 / 90 * share)), abs=1e-12)
    rows = np.array([[40, 0, 0, 0, 0, 0], [0, 40, 0, 0, 40, 0]])
    never, always = sorted(associations(MentionSums.of(rows), "wm", "ab"), key=lambda each: each.pmi)
    assert (never.pmi, never.npmi, never.high) == (-np.inf, -1, pytest.approx(log2(3 / 20)))
    assert (always.pmi, always.npmi) == (pytest.approx(1), pytest.approx(1))


def test_intervals_are_those_of_resampled_documents():
    rows = drawn_rows(1500, [[0.5, 0.1], [0.3, 0.12]])
    draw = np.random.default_rng(7)
    found = associations(MentionSums.of(rows), "wm", "ab")
    assert len(found) == 4
    tried: dict[tuple[str, str], list[float]] = {}
    for _ in range(1500):
        for each in associations(MentionSums.of(rows[draw.integers(len(rows), size=len(rows))]), "wm", "ab"):
            tried.setdefault((each.group, each.attribute), []).append(each.pmi)
    for each in found:
        deviation = np.std(tried[each.group, each.attribute])
        assert (each.high - each.low) / 2 / 1.96 == pytest.approx(deviation, rel=0.08)


def test_counts_of_parts_add_up():
    rows = drawn_rows(300, [[0.5, 0.2], [0.3, 0.25]])
    parts = [MentionSums.of(part) for part in np.array_split(rows, [7, 100])]
    whole, joined = MentionSums.of(rows), parts[0] + parts[1] + parts[2]
    assert whole.documents == joined.documents
    for one, other in itertools.pairwise([associations(each, "wm", "ab") for each in (whole, joined)]):
        assert one == other
