"""Published layouts of conversations and preferences: the same messages from each; what does not fit, with a remedy."""

import json
from typing import Any

import pytest

from hornbook.text.config.labels import ChatLabels, LabelsConfig, PreferenceLabels, RatedLabels
from hornbook.text.ingest.charsets import UnfitRow
from hornbook.text.ingest.labels.rows import label_row

ASKED, SAID = {"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}
CALL = {"function": {"name": "add", "arguments": {"a": 2}}}
TALK = [("system", "be brief"), ("user", "2+2?"), ("assistant", "4"), ("user", "sure?"), ("assistant", "yes")]
AS_MESSAGES = [{"role": who, "content": text} for who, text in TALK]
AS_SHAREGPT = [{"from": {"user": "human", "assistant": "gpt"}.get(who, who), "value": text} for who, text in TALK]


def parts(config: LabelsConfig, row: dict[str, Any]) -> list[tuple[str, str]]:
    text, labels = label_row(config, row)
    return [(str(who), text[start:end]) for who, (start, end) in zip(labels.values, labels.parts, strict=True)]


@pytest.mark.parametrize(
    "row",
    [
        {"messages": AS_MESSAGES},
        {"messages": [{**AS_MESSAGES[0], "role": "developer"}, *AS_MESSAGES[1:]]},
        {"messages": AS_MESSAGES[1:], "system": "be brief"},
        {"conversations": AS_SHAREGPT},
        {"conversations": AS_SHAREGPT[1:], "system": "be brief"},
        {"instruction": "sure?", "input": "", "output": "yes", "history": [["2+2?", "4"]], "system": "be brief"},
        {"prompt": AS_MESSAGES[:-1], "completion": AS_MESSAGES[-1:]},
        {"prompt": AS_MESSAGES[:-1], "completion": "yes"},
        {"messages": [{"role": who, "content": [{"type": "text", "text": text}]} for who, text in TALK]},
    ],
)
def test_every_layout_gives_the_same_conversation(row: dict[str, Any]) -> None:
    assert parts(ChatLabels(), row) == TALK


def test_an_instruction_and_its_input_are_one_question() -> None:
    row = {"instruction": "Add.", "input": "2, 2", "output": "4"}
    assert parts(ChatLabels(layout="alpaca"), row) == [("user", "Add.\n\n2, 2"), ("assistant", "4")]


def test_calls_of_tools_and_answers_that_are_not_learned() -> None:
    row = {
        "messages": [
            ASKED,
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "tool", "content": "4"},
            {**SAID, "weight": 0},
            ASKED,
            SAID,
        ],
        "tools": [{"name": "add"}],
    }
    found = parts(ChatLabels(), row)
    calls = ["tools", "user", "assistant", "tool_calls", "tool", "assistant:skipped", "user", "assistant"]
    assert [who for who, _ in found] == calls
    assert json.loads(dict(found)["tool_calls"]) == [CALL]
    of_sharegpt = [
        {"from": "human", "value": "2+2?"},
        {"from": "function_call", "value": json.dumps(CALL)},
        {"from": "observation", "value": "4"},
        {"from": "gpt", "value": "4"},
    ]
    found = parts(ChatLabels(), {"conversations": of_sharegpt})
    assert [who for who, _ in found] == ["user", "assistant", "tool_calls", "tool", "assistant"]
    assert json.loads(dict(found)["tool_calls"]) == [CALL]


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        (
            {"messages": [SAID, ASKED]},
            "out of order: message 1 is of 'assistant' at the beginning.*system or user.*reorder",
        ),
        ({"messages": [ASKED, ASKED, SAID]}, "out of order: message 2 is of 'user' after 'user'"),
        ({"messages": [ASKED, SAID, {"role": "system", "content": "x"}]}, "out of order: message 3"),
        ({"messages": [ASKED, SAID, {"role": "tool", "content": "x"}]}, "message 3 is of 'tool' after 'assistant'"),
        ({"messages": [ASKED]}, "no answer.*cut the row after its last answer"),
        ({"messages": [ASKED, SAID, ASKED]}, "no answer"),
        ({"messages": [ASKED, {**SAID, "content": " \n"}]}, "empty answer.*leave the row out"),
        ({"messages": [ASKED, {**SAID, "weight": 0}]}, "nothing to learn"),
        ({"messages": [ASKED, {**SAID, "weight": 0.5}]}, "weight '?0.5"),
        ({"messages": []}, "no messages"),
        ({"messages": ["hello"]}, "message 1 is no object"),
        ({"messages": [{"role": "narrator", "content": "x"}]}, "message 1 has the role 'narrator': known are"),
        ({"messages": [ASKED, {"role": "assistant"}]}, "message 2 is no text"),
        ({"messages": [{**ASKED, "content": [{"type": "image"}]}]}, "parts that are no text"),
        ({"instruction": "x", "output": None}, "missing output"),
        ({"text": "x"}, "no conversation: the keys are 'text'.*messages: messages; sharegpt: conversations"),
        ({"messages": [ASKED, SAID], "tools": {"a": 1}}, "tools are no list"),
        ({"messages": [ASKED, {**SAID, "tool_calls": CALL}]}, "message 2 has calls of tools that are no list"),
        ({"messages": [ASKED, {**SAID, "tool_calls": "add"}]}, "message 2 has calls of tools that are no list"),
        ({"instruction": "x", "output": "y", "history": 5}, "history has no pairs"),
        ({"instruction": "x", "output": "y", "history": [["q", None]]}, "history has no pairs"),
    ],
)
def test_what_is_no_conversation(row: dict[str, Any], problem: str) -> None:
    with pytest.raises(UnfitRow, match=problem):
        label_row(ChatLabels(), row)


def test_rows_of_a_table_have_null_where_another_has_a_key() -> None:
    nothing = {"weight": None, "tool_calls": None, "from": None, "value": None}
    assert parts(ChatLabels(), {"messages": [{**ASKED, **nothing}, {**SAID, **nothing}]})[1] == ("assistant", "4")


def test_calls_that_are_written_as_text_are_read() -> None:
    called = {"role": "assistant", "content": "", "tool_calls": json.dumps([CALL])}
    found = parts(ChatLabels(), {"messages": [ASKED, called, {"role": "tool", "content": "4"}, SAID]})
    assert json.loads(dict(found)["tool_calls"]) == [CALL]


PREFERRED = [("user", "2+2?"), ("chosen:assistant", "4"), ("rejected:assistant", "5")]
WRONG = {**SAID, "content": "5"}


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "2+2?", "chosen": "4", "rejected": "5"},
        {"prompt": [ASKED], "chosen": [SAID], "rejected": [WRONG]},
        {"prompt": "2+2?", "chosen": SAID, "rejected": WRONG},
        {"chosen": [ASKED, SAID], "rejected": [ASKED, WRONG]},
        {"prompt": " 2+2?", "chosen": [ASKED, SAID], "rejected": [ASKED, WRONG]},  # as UltraFeedback, binarized
        {"chosen": "\n\nHuman: 2+2?\n\nAssistant: 4", "rejected": "\n\nHuman: 2+2?\n\nAssistant: 5"},  # as HH
    ],
)
def test_every_layout_gives_the_same_preference(row: dict[str, Any]) -> None:
    assert parts(PreferenceLabels(), row) == PREFERRED


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({"prompt": "x", "chosen": "4"}, "missing rejected"),
        ({"prompt": "x", "chosen": "4", "rejected": "4"}, "the same: there is nothing to prefer"),
        ({"prompt": "x", "chosen": "4", "rejected": " "}, "empty answer"),
        ({"chosen": [ASKED, SAID], "rejected": [{**ASKED, "content": "other"}, SAID]}, "no prompt"),
        ({"prompt": "3+3?", "chosen": [ASKED, SAID], "rejected": [ASKED, WRONG]}, "out of order: message 2"),
        ({"prompt": [ASKED, SAID], "chosen": [SAID], "rejected": [WRONG]}, "out of order: message 3"),
        ({"prompt": "x", "chosen": [SAID, ASKED], "rejected": [WRONG]}, "no answer"),
    ],
)
def test_what_is_no_preference(row: dict[str, Any], problem: str) -> None:
    with pytest.raises(UnfitRow, match=problem):
        label_row(PreferenceLabels(), row)


def test_ratings() -> None:
    good, bad = ({"prompt": "2+2?", "completion": "4", "label": label} for label in (True, 0))
    assert parts(RatedLabels(), good) == [("user", "2+2?"), ("chosen:assistant", "4")]
    assert parts(RatedLabels(), bad) == [("user", "2+2?"), ("rejected:assistant", "4")]
    for row, problem in (({**good, "label": "yes"}, "neither true nor false"), ({"label": True}, "missing completion")):
        with pytest.raises(UnfitRow, match=problem):
            label_row(RatedLabels(), row)
