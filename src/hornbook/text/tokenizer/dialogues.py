"""From stored conversations and preferences to labelled tokens, by a chat template.

Of a conversation each token that is learned has the label 1. Preferences are two conversations one after the other, the
chosen answer's and the rejected one's (a rated answer is one of them alone); their labels are 2 * side + learned, so
that both where the second begins and what is an answer stands beside the tokens.
"""

import json
import math
from pathlib import Path

import numpy as np

from hornbook.errors import IntegrityError, UsageError
from hornbook.files.durable import write_atomic
from hornbook.text.config.labels import ChatLabels, Dialogue
from hornbook.text.ingest.labels.conversations import CALLS, CHOSEN, REJECTED, SKIPPED, TOOLS
from hornbook.text.ingest.labels.labelling import Labelling
from hornbook.text.tokenizer.chat_template import FILE, OURS, ChatTemplate, Message, Rendered, read_source
from hornbook.text.tokenizer.label_tokens import LabelledTokens
from hornbook.text.tokenizer.special_tokens import read_settings
from hornbook.text.tokenizer.tokenizer import Tokenizer

SIDES = {"": 0, CHOSEN: 0, REJECTED: 1}
_REMEDY = "leave the row out (text.exclude), or take another template (text.chat_template)"


def dialogue_tokens(template: ChatTemplate, config: Dialogue, text: str, labels: Labelling) -> LabelledTokens:
    """Tokens and labels of a document. UsageError where the template refuses it."""
    parts = [(str(who), text[start:end]) for who, (start, end) in zip(labels.values, labels.parts, strict=True)]
    try:
        if isinstance(config, ChatLabels):
            found = _render(template, parts, "")
            values = np.where(found.is_answer, 1.0, math.nan)
            return LabelledTokens(found.tokens, values.astype(np.float32)[:, None])
        sides = [side for side in (CHOSEN, REJECTED) if any(who.startswith(side) for who, _ in parts)]
        rendered = [_render(template, parts, side) for side in sides]
    except UsageError as error:
        raise UsageError(f"{error}: {_REMEDY}") from error
    values = [2.0 * SIDES[side] + np.array(each.is_answer) for side, each in zip(sides, rendered, strict=True)]
    tokens = [token for each in rendered for token in each.tokens]
    return LabelledTokens(tokens, np.concatenate(values).astype(np.float32)[:, None])


def _render(template: ChatTemplate, parts: list[tuple[str, str]], side: str) -> Rendered:
    """The conversation of one side: what both share, and its answer, which alone is learned where there are sides."""
    messages: list[Message] = []
    tools = None
    for who, content in parts:
        before, role = _side_of(who)
        if before not in ("", side):
            continue
        if role == TOOLS:
            tools = json.loads(content)
        elif role == CALLS:
            messages[-1] = messages[-1]._replace(tool_calls=json.loads(content))
        else:
            learned = role != SKIPPED and before == side
            messages.append(Message(role.removesuffix(SKIPPED.removeprefix("assistant")), content, (), learned))
    found = template.encode_answers(messages, tools)
    if not any(found.is_answer):
        raise UsageError("an answer of this conversation has no token")
    return found


def _side_of(who: str) -> tuple[str, str]:
    """(side of a part or "", whose it is)."""
    before, _, role = who.partition(":")
    return (before, role) if before in (CHOSEN, REJECTED) else ("", who)


def choose_template(name: str, tokenizer: Tokenizer, folder: Path) -> tuple[str, str]:
    """(source of the chat template of a name or a path, note for people). `folder`: of the tokenizer as it came.

    UsageError where there is none, or it spells special tokens that the tokenizer lacks.
    """
    note = ""
    if name == "tokenizer":
        source = read_source(folder)
        if source is None:
            source, note = OURS["plain"], 'the tokenizer has no chat template: conversations are written by "plain"'
    elif name in OURS:
        source = OURS[name]
    else:
        try:
            source = Path(name).read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            known = ", ".join(["tokenizer", *OURS])
            raise UsageError(
                f"text.chat_template: {name} cannot be read ({error}): name a Jinja file, or one of {known}"
            ) from error
    try:
        ChatTemplate(source, tokenizer, read_settings(folder)).require_tokens()
    except UsageError as error:
        raise UsageError(f"text.chat_template {name}: {error}") from error
    except IntegrityError as error:
        remedy = 'correct it, or take text.chat_template = "plain", which any tokenizer can write'
        raise UsageError(f"text.chat_template {name}: {str(error).rstrip('.')}: {remedy}") from error
    return source, note


def write_template(folder: Path, source: str) -> None:
    """Put a chat template beside a tokenizer."""
    write_atomic(folder / FILE, source)
