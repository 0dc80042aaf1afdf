"""Texts as both sides of a certificate read them: tokens of strings, and how prompts and chats are continued."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hornbook.errors import HornbookError
from hornbook.model.generate.generate import generate
from hornbook.model.generate.prompts import encode_prompt
from hornbook.model.hf.generation_config import is_foreign
from hornbook.model.storage.load import Loaded
from hornbook.text.tokenizer.chat_template import Message, read_chat_template
from hornbook.text.tokenizer.tokenizer import Tokenizer

TEXTS = (
    "The quick brown fox jumps over the lazy dog.",
    " two leading  and   inner spaces,\ta tab,\nand line ends\n\n",
    "def f(x):\n    return {'a': x[0] + 1, \"b\": None}  # 3.14e-5",
    "Gr\u00fc\u00dfe, \u00e9t\u00e9, \u041c\u043e\u0441\u043a\u0432\u0430",
    "\u6771\u4eac, \u0645\u0631\u062d\u0628\u0627",
    "\U0001f600 \U0001f469\u200d\U0001f4bb \u20ac \u2014 1234567890",
)
"""Texts in composed form, so that a normalising tokenizer can restore them too."""
PROMPTS = (*TEXTS, "The", "def main():", "1, 2, 3,", "\n")
"""Ten texts to continue, and ten questions to answer by a chat template."""
NEW_TOKENS = 8
TIE = 1e-3
"""Two logits that differ by less than this share of the largest may change places by rounding."""


@dataclass(frozen=True)
class TokenizerFigures:
    """Both tokenizers on the same texts."""

    texts: int
    ids: int
    ids_equal: bool
    restored: bool
    """Every text came back from its ids."""


def compare_tokenizers(
    transformers: Any, folder: Path, ours: Tokenizer | None, problems: list[str]
) -> TokenizerFigures | None:
    if ours is None:
        return None
    theirs = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    ids = [ours.encode(text) for text in TEXTS]
    their_ids = [theirs.encode(text, add_special_tokens=False) for text in TEXTS]
    restored = [ours.decode(each) for each in ids]
    their_restored = [theirs.decode(each, clean_up_tokenization_spaces=False) for each in ids]
    for text, a, b, back, their_back in zip(TEXTS, ids, their_ids, restored, their_restored, strict=True):
        if a != b:
            problems.append(f"the tokenizers disagree on {text!r}: {a} here, {b} in transformers")
        # A tokenizer that changes text by design (case, accents) is lossy on both sides, and that is no fault.
        elif back not in (text, their_back):
            problems.append(f"{text!r} comes back from its ids as {back!r}, in transformers as {their_back!r}")
    return TokenizerFigures(len(TEXTS), sum(map(len, ids)), ids == their_ids, restored == list(TEXTS))


@torch.no_grad()
def compare_texts(transformers: Any, folder: Path, ours: Loaded, theirs: nn.Module, problems: list[str]) -> int:
    """Greedy continuations of `PROMPTS`, and answers to them where there is a chat template; their number.

    Nothing is compared of models that continue no text, or have no tokenizer.
    """
    tokenizer = ours.tokenizer
    if tokenizer is None or (ours.config.kind, ours.config.head.kind) != ("decoder", "lm"):
        return 0
    reader = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    asked = [
        (text, encode_prompt(ours.model, tokenizer, text, prefix=ours.prefix).tokens, reader(text)["input_ids"])
        for text in PROMPTS
    ]
    asked += _chats(reader, ours, tokenizer, problems)
    room = min(NEW_TOKENS, ours.config.position.length // 2)
    for text, tokens, their_tokens in asked:
        if list(their_tokens) != tokens:
            problems.append(f"the prompt {text!r} has the tokens {tokens} here, {list(their_tokens)} in transformers")
        elif len(tokens) + room <= ours.config.position.length:
            _compare_continuations(text, tokens, room, ours, theirs, problems)
    return len(asked)


def _chats(
    reader: Any, ours: Loaded, tokenizer: Tokenizer, problems: list[str]
) -> list[tuple[str, list[int], Sequence[int]]]:
    """(Question, our tokens, theirs) of each text as a user's message."""
    template = read_chat_template(ours.tokenizer_folder, tokenizer)
    if template is None:
        return []
    end = template.turn_end()
    found = []
    for text in PROMPTS:
        try:
            tokens = template.encode([Message("user", text)])
        except HornbookError:  # a template that wants other messages
            continue
        asked = [{"role": "user", "content": text}]
        theirs = reader.apply_chat_template(asked, add_generation_prompt=True, return_dict=True)["input_ids"]
        found.append((text, tokens, theirs))
    if found and end is not None and end not in ours.ends and not is_foreign(ours.base):
        problems.append(
            f"a turn of the chat ends with {tokenizer.spell(end)!r} ({end}), which is not among eos_token_id of "
            f"generation_config.json ({sorted(ours.ends)}): transformers would go on"
        )
    return found


def _compare_continuations(
    text: str, tokens: list[int], room: int, ours: Loaded, theirs: Any, problems: list[str]
) -> None:
    """Up to the first place at which two tokens are as likely, within rounding."""
    tokenizer = ours.require_tokenizer()
    ends, vocab = ours.ends, tokenizer.vocab_size
    found = list(generate(ours.model, tokens, max_tokens=room, stop=ends, vocab=vocab, greedy=True))
    row = torch.tensor([tokens])
    plain = {"do_sample": False, "num_beams": 1, "repetition_penalty": 1.0, "temperature": None, "top_p": None}
    suppressed = list(range(vocab, ours.vocab)) or None
    made = theirs.generate(
        row,
        attention_mask=torch.ones_like(row),
        max_new_tokens=room,
        **plain,
        top_k=None,
        suppress_tokens=suppressed,
        pad_token_id=tokenizer.end_id,
    )
    other = made[0, len(tokens) :].tolist()
    other = other[: next((place for place, token in enumerate(other) if token in ends), len(other))]
    if found == other:
        return
    place = next((i for i, pair in enumerate(zip(found, other, strict=False)) if pair[0] != pair[1]), None)
    if place is not None:
        assert ours.model.head is not None
        states, _ = ours.model(torch.tensor([[*tokens, *found[:place]]]))
        scores = ours.model.head.logits(states[0, -1])
        if abs(float(scores[found[place]] - scores[other[place]])) < TIE * float(scores.abs().max()):
            return
    problems.append(f"the prompt {text!r} is continued by {found} here, by {other} in transformers")
