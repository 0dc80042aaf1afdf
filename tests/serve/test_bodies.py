"""Fields of requests that ask for nothing are accepted; the same fields with an effect are refused by name."""

import json
from typing import Any

import pytest

from hornbook.serve.bodies import ChatBody, parse_body
from hornbook.serve.http_errors import ApiError

ASKED: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "a"}]}


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": []},
        {"tools": [], "tool_choice": "auto"},
        {"tool_choice": "none", "functions": [], "function_call": "none"},
        {"modalities": ["text"]},
        {"messages": [*ASKED["messages"], {"role": "assistant", "content": "b", "tool_calls": [], "annotations": []}]},
    ],
)
def test_what_has_no_effect_is_ignored(fields: dict[str, Any]) -> None:
    assert parse_body(ChatBody, json.dumps(ASKED | fields).encode()).model == "m"


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [{"type": "function"}]},
        {"tool_choice": "required"},
        {"modalities": ["text", "audio"]},
        {"functions": [{"name": "f"}]},
    ],
)
def test_what_has_an_effect_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ApiError, match=next(iter(fields))):
        parse_body(ChatBody, json.dumps(ASKED | fields).encode())
