"""Conversations and preferences in the layouts that sets are published in: from a row to messages in one order.

Layouts: `messages` (role, content; also with tool calls), ShareGPT (`conversations` of from, value), Alpaca
(instruction, input, output), prompt and completion, prompt with a chosen and a rejected answer (each may be the whole
conversation, in HH as one text), and prompt, completion and label. A document has the contents as its parts; the values
beside them say whose each is.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from hornbook.text.ingest.charsets import UnfitRow
from hornbook.text.ingest.labels.labelling import Labelling, joined_parts

Row = Mapping[str, Any]
TOOLS, CALLS, SKIPPED = "tools", "tool_calls", "assistant:skipped"
"""Values of parts that are no plain message: the tools, calls of the message before, an answer that is not learned."""
CHOSEN, REJECTED = "chosen", "rejected"
_ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "human": "user",
    "prompter": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bing": "assistant",
    "bard": "assistant",
    "model": "assistant",
    "bot": "assistant",
    "tool": "tool",
    "function": "tool",
    "ipython": "tool",
    "observation": "tool",
    "function_response": "tool",
    "function_call": CALLS,
}
"""What layouts call those who speak. ShareGPT's `function_call` is what an assistant asks of a tool."""
_FOLLOWS = {
    "": ("system", "user"),
    "system": ("user",),
    "user": ("assistant",),
    "assistant": ("user",),
    CALLS: ("tool",),
    "tool": ("tool", "assistant"),
}
"""Role -> roles that may come next; an assistant that called tools counts as CALLS."""
_SPEAKER = re.compile(r"\n\n(Human|Assistant):")
"""In the texts of Anthropic's HH set, each of which is a whole conversation."""
_SHOWN = 60


class Turn(NamedTuple):
    """A message of a row."""

    role: str
    content: str
    calls: Sequence[Any] = ()
    is_learned: bool = True


def conversation_row(layout: str, row: Row) -> tuple[str, Labelling]:
    """Text and labels of a conversation. `layout`: `auto` tells it by the keys. Raises UnfitRow."""
    name = _layout(layout, row)
    turns = [*_system(row), *_CONVERSATIONS[name](row)]
    _check_order(turns)
    _check_answers(turns)
    return _labelled([*_tools(row), *_parts(turns)])


def preference_row(row: Row) -> tuple[str, Labelling]:
    """Text and labels of a prompt with a chosen and a rejected answer; the prompt may be in both alone."""
    chosen, rejected = (_turns(_get(row, key), key) for key in (CHOSEN, REJECTED))
    asked = _asked(row)
    same = next((n for n, pair in enumerate(zip(chosen, rejected, strict=False)) if pair[0] != pair[1]), 0)
    if not asked and not same:
        raise UnfitRow("no prompt: without the key 'prompt', chosen and rejected begin with the same messages")
    if not asked or _is_said(asked[-1], chosen[:same]):  # both hold the whole conversation, beside the prompt or not
        asked, chosen, rejected = chosen[:same], chosen[same:], rejected[same:]
    prompt = [*_system(row), *asked]
    if chosen == rejected:
        raise UnfitRow("chosen and rejected are the same: there is nothing to prefer, so leave the row out")
    for answer in (chosen, rejected):
        _check_order([*prompt, *answer])
        _check_answers(answer)
    return _labelled([*_tools(row), *_parts(prompt), *_parts(chosen, CHOSEN), *_parts(rejected, REJECTED)])


def _is_said(turn: Turn, turns: Sequence[Turn]) -> bool:
    said = turn.role, turn.content.strip()
    return any((each.role, each.content.strip()) == said for each in turns)


def rated_row(row: Row) -> tuple[str, Labelling]:
    """Text and labels of a prompt, an answer, and whether the answer is a good one."""
    label = _get(row, "label")
    if label not in (True, False):  # 0 and 1 too
        raise UnfitRow(f"label is neither true nor false: {_short(label)}")
    prompt, answer = [*_system(row), *_asked(row)], _turns(_get(row, "completion"), "completion")
    if not prompt:
        raise UnfitRow("no prompt: no key 'prompt'")
    _check_order([*prompt, *answer])
    _check_answers(answer)
    return _labelled([*_tools(row), *_parts(prompt), *_parts(answer, CHOSEN if label else REJECTED)])


def _layout(layout: str, row: Row) -> str:
    if layout != "auto":
        return layout
    found = next((name for name, keys in _KEYS.items() if all(key in row for key in keys)), None)
    if found is None:
        known = "; ".join(f"{name}: {', '.join(keys)}" for name, keys in _KEYS.items())
        keys = _short(", ".join(map(str, row)))
        raise UnfitRow(f"no conversation: the keys are {keys}, and those of the layouts are {known}")
    return found


def _messages(row: Row) -> list[Turn]:
    return _turns(_get(row, "messages"), "messages")


def _sharegpt(row: Row) -> list[Turn]:
    return _turns(_get(row, "conversations"), "conversations")


def _alpaca(row: Row) -> list[Turn]:
    asked, given, answer = _get(row, "instruction"), row.get("input") or "", _get(row, "output")
    for name, value in (("instruction", asked), ("input", given), ("output", answer)):
        _require_text(value, name)
    earlier = row.get("history") or []
    if not isinstance(earlier, list | tuple) or not all(map(_is_pair, earlier)):
        raise UnfitRow(f"history has no pairs of question and answer: {_short(earlier)}")
    past = [Turn(role, text) for pair in earlier for role, text in zip(("user", "assistant"), pair, strict=True)]
    return [*past, Turn("user", f"{asked}\n\n{given}" if given.strip() else asked), Turn("assistant", answer)]


def _is_pair(value: Any) -> bool:
    return isinstance(value, list | tuple) and len(value) == 2 and all(isinstance(each, str) for each in value)


def _completion(row: Row) -> list[Turn]:
    return [*_asked(row), *_turns(_get(row, "completion"), "completion")]


_CONVERSATIONS: dict[str, Callable[[Row], list[Turn]]] = {
    "messages": _messages,
    "sharegpt": _sharegpt,
    "alpaca": _alpaca,
    "completion": _completion,
}
_KEYS = {
    "messages": ("messages",),
    "sharegpt": ("conversations",),
    "alpaca": ("instruction", "output"),
    "completion": ("prompt", "completion"),
}
"""Layout -> keys that its rows have, in the order in which they are looked for."""


def _system(row: Row) -> list[Turn]:
    """A system message beside the others."""
    text = row.get("system")
    return [Turn("system", _require_text(text, "system"))] if isinstance(text, str) and text.strip() else []


def _asked(row: Row) -> list[Turn]:
    """The prompt: a text, or messages."""
    prompt = row.get("prompt")
    if prompt is None:
        return []
    return [Turn("user", prompt)] if isinstance(prompt, str) else _turns(prompt, "prompt")


def _turns(given: Any, name: str) -> list[Turn]:
    """Messages, or an answer that is a text or one message."""
    if isinstance(given, str) and given.startswith("\n\nHuman:"):
        _, *parts = _SPEAKER.split(given)
        return [Turn(_ROLES[who.lower()], said.strip()) for who, said in zip(parts[::2], parts[1::2], strict=True)]
    if isinstance(given, str):
        return [Turn("assistant", given)]
    messages = [given] if isinstance(given, Mapping) else given
    if not isinstance(messages, list | tuple) or not messages:
        raise UnfitRow(f"no messages: {name!r} is {_short(given)}")
    return list(_joined(_turn(each, number) for number, each in enumerate(messages, 1)))


def _turn(message: Any, number: int) -> Turn:
    if not isinstance(message, Mapping):
        raise UnfitRow(f"message {number} is no object: {_short(message)}")
    who, content = message.get("role", message.get("from")), message.get("content", message.get("value"))
    role = _ROLES.get(who.lower()) if isinstance(who, str) else None
    if role is None:
        raise UnfitRow(f"message {number} has the role {_short(who)}: known are {', '.join(sorted(_ROLES))}")
    calls = _calls(message, number)
    if role == CALLS:
        return Turn("assistant", "", [_call(content)])
    if isinstance(content, list | tuple):  # parts, as vision models have them: all of text here
        if not all(isinstance(part, Mapping) and part.get("type") == "text" for part in content):
            raise UnfitRow(f"message {number} has parts that are no text, and hornbook learns text: {_short(content)}")
        content = "".join(str(part.get("text", "")) for part in content)
    text = "" if content is None and calls else _require_text(content, f"message {number}")
    weight = 1 if message.get("weight") is None else message["weight"]  # tables have null where rows differ in keys
    if weight not in (0, 1):
        raise UnfitRow(f"message {number} has the weight {_short(weight)}: 1 is learned, 0 is not")
    return Turn(role, text, calls, bool(weight))


def _calls(message: Row, number: int) -> list[Any]:
    """What an assistant asks of tools; a list that is written as text is read."""
    given = message.get("tool_calls") or None
    if given is None:
        return [message["function_call"]] if message.get("function_call") else []
    calls = _call(given) if isinstance(given, str) else given
    if not isinstance(calls, list | tuple):
        raise UnfitRow(f"message {number} has calls of tools that are no list: {_short(given)}")
    return list(calls)


def _call(content: Any) -> Any:
    """A call that is written as text; as it is where it is no JSON."""
    try:
        return json.loads(content)
    except (TypeError, ValueError):
        return content


def _joined(turns: Iterable[Turn]) -> Iterator[Turn]:
    """Turns, with calls of tools put to the message of the assistant that they follow."""
    last: Turn | None = None
    for turn in turns:
        if last is not None and last.role == turn.role == "assistant" and turn.calls and not turn.content:
            last = last._replace(calls=[*last.calls, *turn.calls])
            continue
        if last is not None:
            yield last
        last = turn
    if last is not None:
        yield last


def _check_order(turns: Sequence[Turn]) -> None:
    before = ""
    for number, turn in enumerate(turns, 1):
        if turn.role not in _FOLLOWS[before]:
            where = f"after {before!r}" if before else "at the beginning"
            expected = " or ".join(_FOLLOWS[before])
            raise UnfitRow(
                f"messages out of order: message {number} is of {turn.role!r} {where}, where {expected} is expected; "
                "join or reorder the messages of the row"
            )
        before = CALLS if turn.calls else turn.role


def _check_answers(turns: Sequence[Turn]) -> None:
    said = [turn for turn in turns if turn.role == "assistant"]
    if not said or turns[-1].role != "assistant":
        raise UnfitRow("no answer: the last message is not the assistant's; cut the row after its last answer")
    if any(not turn.content.strip() and not turn.calls for turn in said):
        raise UnfitRow("empty answer: a message of the assistant has no text; leave the row out, or write its answer")
    if not any(turn.is_learned for turn in said):
        raise UnfitRow("nothing to learn: every message of the assistant has the weight 0")


def _tools(row: Row) -> list[tuple[str, str]]:
    tools = row.get("tools")
    if isinstance(tools, str) and tools.strip():
        tools = _call(tools)
    if tools and not isinstance(tools, list | tuple):
        raise UnfitRow(f"tools are no list: {_short(tools)}")
    return [(TOOLS, json.dumps(tools, ensure_ascii=False))] if tools else []


def _parts(turns: Iterable[Turn], side: str = "") -> Iterator[tuple[str, str]]:
    """(whose it is, text) of the parts of messages; `side`: of an answer that is preferred or not."""
    before = f"{side}:" if side else ""
    for turn in turns:
        who = turn.role if turn.role != "assistant" or turn.is_learned else SKIPPED
        yield before + who, turn.content
        if turn.calls:
            yield before + CALLS, json.dumps(turn.calls, ensure_ascii=False)


def _labelled(parts: Sequence[tuple[str, str]]) -> tuple[str, Labelling]:
    text, spans = joined_parts(*(content for _, content in parts))
    return text, Labelling(spans, values=tuple(who for who, _ in parts))


def _get(row: Row, name: str) -> Any:
    if row.get(name) is None:
        raise UnfitRow(f"missing {name}: no key {name!r} (keys: {_short(', '.join(map(str, row)))})")
    return row[name]


def _require_text(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise UnfitRow(f"{name} is no text: {_short(value)}")
    return value


def _short(value: object) -> str:
    text = value if isinstance(value, str) else repr(value)
    return ascii(text if len(text) <= _SHOWN else text[:_SHOWN] + "...")
