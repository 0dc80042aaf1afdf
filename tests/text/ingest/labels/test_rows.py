"""Rows of labelled sets: what each kind of label makes of them, and what is wrong with damaged ones."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hornbook.errors import UsageError
from hornbook.text.config.labels import AnswerLabels, ClassLabels, LabelsConfig, NumberLabels, SpanLabels, TagLabels
from hornbook.text.config.text import NormalizeConfig
from hornbook.text.ingest.document import Document
from hornbook.text.ingest.labels.labelling import Labelling, edited
from hornbook.text.ingest.labels.rows import UnfitRow, label_row, names_of, with_names
from hornbook.text.refinery.steps import basics

CLASSES = ClassLabels(labels=["neg", "pos"])
PAIRS = ClassLabels(labels=["no", "yes"], text="a", pair="b")
TAGS = TagLabels(labels=["O", "B-PER", "I-PER"])


def test_a_label_is_a_name_or_a_number() -> None:
    for given_label in ("pos", 1, 1.0, "1", True):
        assert label_row(CLASSES, {"text": "t", "label": given_label})[1].values == (1.0,)


def test_where_names_are_numbers_a_number_is_a_name() -> None:
    stars = ClassLabels(labels=["1", "2", "3", "-1"])
    for given_label, number in ((1, 0), (1.0, 0), ("1", 0), (3, 2), (-1, 3), (True, 1)):
        assert label_row(stars, {"text": "t", "label": given_label})[1].values == (number,)
    with pytest.raises(UnfitRow, match=r"unknown label: '0'"):
        label_row(stars, {"text": "t", "label": 0})


def test_parts_of_a_pair_are_where_they_stand() -> None:
    text, labels = label_row(PAIRS, {"a": "one", "b": "two\nlines", "label": 0})
    assert [text[begin:end] for begin, end in labels.parts] == ["one", "two\nlines"]


def test_several_labels_become_zeros_and_ones() -> None:
    config = ClassLabels(labels=["a", "b", "c"], multiple=True)
    assert label_row(config, {"text": "t", "label": ["c", 0]})[1].values == (1.0, 0.0, 1.0)
    assert label_row(config, {"text": "t", "label": []})[1].values == (0.0, 0.0, 0.0)


def test_words_keep_their_tags() -> None:
    text, labels = label_row(TAGS, {"tokens": ["Ada", "Love lace", "wrote"], "tags": ["B-PER", 2, "O"]})
    found = [(text[begin:end], value) for begin, end, value in labels.spans]
    assert text == "Ada Love lace wrote"
    assert found == [("Ada", 1.0), ("Love lace", 2.0), ("wrote", 0.0)]


@pytest.mark.parametrize(
    ("label", "name"),
    [("pos", "pos"), (" pos", " pos"), (3, "3"), (3.0, "3"), (True, "true"), (-1, "-1"), ("1.5", "1.5")],
)
def test_without_a_list_labels_stand_by_name(label: object, name: str) -> None:
    labels = label_row(ClassLabels(), {"text": "t", "label": label})[1]
    assert labels.values == (name,)
    assert Labelling.from_json(labels.to_json()) == labels
    several = label_row(ClassLabels(multiple=True), {"text": "t", "label": [label, "a", label]})[1]
    assert several.values == tuple(sorted({name, "a"}))
    tags = label_row(TagLabels(), {"tokens": ["x", "y"], "tags": ["O", label]})[1]
    assert [value for _, _, value in tags.spans] == ["O", name]


@pytest.mark.parametrize("label", ["", "  ", None, float("nan"), 1.5, {"a": 1}, ["a"], "long" * 100])
def test_what_is_no_name_is_said(label: object) -> None:
    with pytest.raises(UnfitRow, match=r"^(no label|label is no name): "):
        label_row(ClassLabels(), {"text": "t", "label": label})


def test_names_are_sorted_and_numbers_as_numbers() -> None:
    for counts, names in (({"b": 1, "B": 2, "a": 9}, ["B", "a", "b"]), ({"10": 1, "9": 1, "-1": 1}, ["-1", "9", "10"])):
        named = with_names(ClassLabels(), counts)
        assert isinstance(named, ClassLabels)
        assert named.labels == names
    assert with_names(CLASSES, {"other": 1}) is CLASSES
    with pytest.raises(UsageError, match=r"'tags' holds 10,001 different labels.* name another column"):
        with_names(TagLabels(), {str(number): 1 for number in range(10_001)})


def test_labels_are_counted_by_name_in_either_form() -> None:
    several = ClassLabels(labels=["a", "b", "c"], multiple=True)
    for config, names in ((several, ["a", "c"]), (ClassLabels(multiple=True), ["a", "c"])):
        assert names_of(config, label_row(config, {"text": "t", "label": ["c", "a"]})[1]) == names
    for config in (TAGS, TagLabels()):
        assert names_of(config, label_row(config, {"tokens": ["x", "y"], "tags": ["O", "B-PER"]})[1]) == ["O", "B-PER"]
    assert names_of(NumberLabels(), label_row(NumberLabels(), {"text": "t", "label": 1})[1]) == []


def test_layouts_of_right_and_wrong_name_both() -> None:
    assert ClassLabels(layout="copa").labels == ["no", "yes"]
    assert ClassLabels(layout="wic", labels=["other", "same"]).labels == ["other", "same"]


@pytest.mark.parametrize("answers", [{"text": ["Bern"], "answer_start": [3]}, [{"text": "Bern", "answer_start": 3}]])
def test_an_answer_is_found_in_both_forms(answers: object) -> None:
    row = {"question": "Where?", "context": "in Bern.", "answers": answers}
    text, labels = label_row(SpanLabels(), row)
    ((begin, end, _),) = labels.spans
    assert (text[begin:end], labels.answers) == ("Bern", ("Bern",))


def test_a_question_may_have_no_answer() -> None:
    _, labels = label_row(SpanLabels(), {"question": "q", "context": "c", "answers": {"text": [], "answer_start": []}})
    assert labels.spans == labels.answers == ()


def test_of_several_answers_the_first_is_learned() -> None:
    text, labels = label_row(AnswerLabels(), {"prompt": "dog", "answer": ["", "Hund", "Köter"]})
    assert [text[begin:end] for begin, end in labels.parts] == ["dog", "Hund"]
    assert labels.answers == ("Hund", "Köter")
    assert label_row(AnswerLabels(), {"prompt": "dog", "answer": ["Hund"]}) == label_row(
        AnswerLabels(), {"prompt": "dog", "answer": "Hund"}
    )


def test_a_template_stands_around_the_prompt() -> None:
    config = AnswerLabels(template="Say {prompt} in German: ")
    text, labels = label_row(config, {"prompt": "dog", "answer": "Hund"})
    assert [text[begin:end] for begin, end in labels.parts] == ["Say dog in German: ", "Hund"]


@pytest.mark.parametrize(
    ("config", "row", "reason"),
    [
        (CLASSES, {"text": "t", "label": "maybe"}, "unknown label: 'maybe'; text.labels.labels are neg, pos"),
        (CLASSES, {"text": "t", "label": -1}, "unknown label: '-1'"),
        (CLASSES, {"text": "t", "label": 2}, "unknown label: '2'"),
        (CLASSES, {"text": "t"}, "missing label: no key 'label'"),
        (CLASSES, {"label": 1}, "missing text: no key 'text'"),
        (CLASSES, {"text": 7, "label": 1}, "text is not a string"),
        (CLASSES, {"text": "\ud800", "label": 1}, "lone surrogate"),
        (PAIRS, {"a": "t", "label": 1}, "missing text: no key 'b'"),
        (NumberLabels(), {"text": "t", "label": "much"}, "label is no number"),
        (NumberLabels(), {"text": "t", "label": float("nan")}, "label is no number"),
        (TAGS, {"tokens": ["a", "b"], "tags": [0]}, "words and tags differ in number: 2 words, 1 tags"),
        (TAGS, {"tokens": ["a", ""], "tags": [0, 0]}, "a word is empty"),
        (TAGS, {"tokens": [], "tags": []}, "no words"),
        (TAGS, {"tokens": "a", "tags": "O"}, "words are no list"),
        (AnswerLabels(), {"prompt": "p", "answer": " "}, "no answer"),
    ],
)
def test_what_is_wrong_is_said(config: LabelsConfig, row: dict[str, object], reason: str) -> None:
    with pytest.raises(UnfitRow, match="^" + reason.replace("(", r"\(").replace("'-1'", "'-1'")):
        label_row(config, row)


@pytest.mark.parametrize(
    ("answers", "reason"),
    [
        ({"text": ["Bern"], "answer_start": [2]}, "answer is not at its place: 2 holds ' Ber', not 'Bern'"),
        ({"text": ["Bern"], "answer_start": [-4]}, "answer is not at its place"),
        ({"text": ["Bern"], "answer_start": []}, "answers and places differ in number"),
        ("Bern", "answers have neither form"),
        ([{"text": "Bern"}], "answers need"),
    ],
)
def test_an_answer_elsewhere_is_refused(answers: object, reason: str) -> None:
    with pytest.raises(UnfitRow, match=f"^{reason}"):
        label_row(SpanLabels(), {"question": "q", "context": "in Bern.", "answers": answers})


@given(st.lists(st.sampled_from(["a", "e\u0301", "\r\n", "\x00", " ", "\u00e9"]), min_size=3, max_size=12), st.data())
def test_labels_follow_an_edit(letters: list[str], data: st.DataObject) -> None:
    text = "".join(letters)
    begin = data.draw(st.integers(0, len(text) - 1))
    end = data.draw(st.integers(begin + 1, len(text)))

    def edit(text: str) -> str:
        return basics.Normalize(NormalizeConfig()).edit(Document(text, "", ""))[0]

    after, labels = edited(text, Labelling(((0, len(text)),), ((begin, end, 1.0),)), edit)
    ((first, last, _),) = labels.spans
    assert labels.parts == ((0, len(after)),)
    unchanged = edit(text) == text
    assert after[first:last] == (text[begin:end] if unchanged else edit(text[begin:end]))


def test_labels_are_stored_and_read_again() -> None:
    labels = Labelling(((0, 3), (4, 9)), ((4, 6, 2.0),), (0.5,), ("\u00e9\n",))
    assert Labelling.from_json(labels.to_json()) == labels
