"""Problems: every rule of the doctor is there with its own texts."""

import inspect

import pytest

from hornbook.errors import UsageError
from hornbook.run.doctor import curve_rules, deaths
from hornbook.settings.schema import settings
from hornbook.studio.explore.explorer import controls
from hornbook.studio.explore.page_answer import answered
from hornbook.studio.explore.widgets.problems import CURVES, RECORDS, TEXTS, problems


def test_every_problem_of_the_doctor_is_a_choice_and_names_differ() -> None:
    assert not curve_rules.texts().keys() & deaths.texts().keys()
    (symptom, about, _) = controls(problems)
    assert [*symptom.choices] == ["all", *curve_rules.texts(), *deaths.texts()]
    assert [*about.choices] == ["all", CURVES, RECORDS]
    assert len(problems().problems.rows) == len(TEXTS) == len(problems().remedies.passages)


@pytest.mark.parametrize("name", TEXTS)
def test_a_problem_is_told_in_the_words_of_its_rule(name: str) -> None:
    answer = problems(symptom=name)
    (passage,), (row,), text = answer.remedies.passages, answer.problems.rows, TEXTS[name]
    assert passage.name == row[1] == text.title
    assert row[2] == text.severity
    assert text.explanation in passage.text
    assert text.remedy in passage.text
    if name in curve_rules.RULES:
        doc = inspect.getdoc(curve_rules.RULES[name])
        assert doc
        assert " ".join(doc.split()) in passage.text
        assert "the same" not in doc.lower(), "it is read alone"


def test_the_settings_that_help_are_settings_of_a_recipe() -> None:
    known = settings().keys()
    named = {word for row in problems().problems.rows for word in str(row[4]).split(", ") if word}
    assert len(named) > 15
    assert [word for word in named if not any(f"{each}.".startswith(f"{word}.") for each in known)] == []


def test_what_the_two_halves_have_is_all_of_it() -> None:
    parts = [len(problems(about=about).problems.rows) for about in (CURVES, RECORDS)]
    assert parts == [len(curve_rules.RULES), len(deaths.texts())]


def test_words_are_searched_in_all_texts() -> None:
    found = [row[0] for row in problems(search="Lower optim.lr").problems.rows]
    assert "exploding_gradients" in found
    assert "disk_full" not in found
    assert [row[0] for row in problems(search="docker").problems.rows] == ["shared_memory"]


@pytest.mark.parametrize(
    "wrong", [{"symptom": "plateu"}, {"about": "x"}, {"search": "zebra"}, {"symptom": "plateau", "about": RECORDS}]
)
def test_what_fits_nothing_is_refused(wrong: dict[str, str]) -> None:
    with pytest.raises(UsageError, match=next(iter(wrong))):
        problems(**wrong)


def test_limits_are_those_of_the_rules_and_the_command_is_typed() -> None:
    assert problems().needed["largest attention logit"] == curve_rules.LOGIT_LIMIT
    command = answered(problems, {"about": CURVES})["command"]
    assert command == "hornbook explore problems --about 'curves of training'"
    assert all(place["line"] > 1 for place in problems.places())
