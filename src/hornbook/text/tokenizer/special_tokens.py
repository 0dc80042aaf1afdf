"""Which token of a tokenizer plays which role: mask, sentinels, fill-in-the-middle, modes, padding, delimiters.

tokenizer.json alone is enough; tokenizer_config.json, where it names a token, goes before the table of spellings.
"""

import itertools
import re
import tomllib
from collections.abc import Container, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers

from hornbook.errors import IntegrityError
from hornbook.files.strict_json import parse_json
from hornbook.text.config.text import Trained

_TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
SPELLINGS: dict[str, list[str]] = _TABLE["spellings"]
"""Role -> spellings that published tokenizers use, of which the first known one counts."""
OURS: dict[str, dict[str, str]] = _TABLE["ours"]
"""Kind of tokenizer -> role -> spelling in those we train; elsewhere the first of the table."""

SENTINELS = tuple(re.compile(p) for p in (r"<extra_id_(\d+)>", r"<\|sentinel_(\d+)\|>", r"<sentinel_(\d+)>"))
"""Numbered spellings, one family after the other; the number says in which order sentinels are used."""

_MODES = ("R", "S", "X")
_NAMED = ("pad", "cls", "sep", "mask")
"""Roles that tokenizer_config.json names, as `pad_token` and so on; begin and end are its bos and eos."""
SAME_AS = "hornbook_same_as"
"""Key of tokenizer_config.json: digest of a tokenizer that differs in its template alone -> that of its origin."""
UNSPELLABLE = "\ufdd0hornbook-special-{}\ufdd1"
"""Noncharacters never occur in interchanged text (Unicode 23.7); the name makes an accident impossible."""


@dataclass(frozen=True, slots=True)
class SpecialTokens:
    """Token ids by role; None, empty where the tokenizer has no such token."""

    begin: int | None
    """Begin of text, which delimits documents; the same as `end` where the tokenizer has no other."""
    end: int | None
    pad: int | None
    cls: int | None
    sep: int | None
    mask: int | None
    sentinels: tuple[int, ...]
    """In the order of use: T5's <extra_id_0> first, whatever its id; as many as there are without a gap."""
    prefix: int | None
    """Fill-in-the-middle: what follows is the text before the hole."""
    suffix: int | None
    """Fill-in-the-middle: what follows is the text after the hole."""
    middle: int | None
    """Fill-in-the-middle: what follows is the text of the hole."""
    modes: dict[str, int]
    """UL2's mode tokens by name: R, S, X."""

    @property
    def ids(self) -> frozenset[int]:
        """All of them."""
        single = (self.begin, self.end, self.pad, self.cls, self.sep, self.mask, self.prefix, self.suffix, self.middle)
        return frozenset({*self.sentinels, *self.modes.values(), *(each for each in single if each is not None)})


def spell_special_tokens(config: Trained) -> list[str]:
    """The special tokens of a tokenizer to be trained, in the order of their ids."""
    ours = OURS.get(config.kind, {})
    spelled: list[str] = []
    for role in config.roles:
        if role == "sentinels":
            spelled += [f"<extra_id_{number}>" for number in range(config.sentinels)]
        else:
            spelled.append(ours.get(role) or SPELLINGS[role][0])
    return spelled


def require_form(data: Any) -> None:
    """Raise ValueError, naming the key, where what is read of a tokenizer.json has not the form it must have."""
    if not isinstance(data, dict) or not isinstance(data.get("model"), dict):
        raise ValueError("it has no model")
    added = data.get("added_tokens") or []
    if not isinstance(added, list):
        raise ValueError("added_tokens is not a list")
    for index, token in enumerate(added):
        given = token if isinstance(token, dict) else {}
        content, number, special = (given.get(name) for name in ("content", "id", "special"))
        if not isinstance(content, str) or type(number) is not int or number < 0 or type(special) is not bool:
            raise ValueError(f"added_tokens.{index} lacks a content, an id or `special`")
        if any("\ud800" <= character <= "\udfff" for character in content):
            raise ValueError(f"added_tokens.{index}: its content is not valid Unicode: {content[:40]!a}")


def find_special_tokens(data: Mapping[str, Any], settings: Mapping[str, Any] | None = None) -> SpecialTokens:
    """The special tokens of a tokenizer.json.

    `settings`: the tokenizer_config.json beside it, whose `mask_token`, `cls_token` and so on go before the table.
    Only tokens listed in `added_tokens` are found: others may come out of ordinary text.
    """
    settings = settings or {}
    known = {token["content"]: int(token["id"]) for token in data.get("added_tokens") or []}
    names = {role: _known(role, known) for role in SPELLINGS}
    named = {role: token_name(settings.get(f"{role}_token")) for role in _NAMED}
    names |= {role: name for role, name in named.items() if name in known}
    begin, names["end"] = find_delimiters(data, settings)
    names["begin"] = begin or names["end"]
    ids = {role: known.get(name) if name else None for role, name in names.items()}
    modes = {mode: number for mode in _MODES if (number := ids.pop(mode)) is not None}
    return SpecialTokens(**ids, modes=modes, sentinels=_find_sentinels(known))


def read_settings(folder: Path) -> dict[str, Any]:
    """tokenizer_config.json of a folder; empty where there is none. Raises IntegrityError where it is damaged."""
    try:
        settings = parse_json((folder / "tokenizer_config.json").read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise IntegrityError(f"{folder / 'tokenizer_config.json'} cannot be read: {error}") from error
    return settings if isinstance(settings, dict) else {}


def find_delimiters(data: Mapping[str, Any], settings: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """(begin-of-text token, end-of-text token) of a tokenizer.json and its tokenizer_config.json, None where unknown.

    Where the settings name no eos_token, as BERT's, their cls_token and sep_token enclose a text.
    """
    known = [token["content"] for token in data.get("added_tokens") or []]
    begin, end, cls, sep = (token_name(settings.get(f"{name}_token")) for name in ("bos", "eos", "cls", "sep"))
    if end is None and sep is not None:
        begin, end = begin or cls, sep
    return begin if settings else _known("begin", known), end or _known("end", known)


def original_digest(digest: str, settings: Mapping[str, Any]) -> str:
    """Digest of the tokenizer that one was made of, where its settings say so; else its own."""
    same = settings.get(SAME_AS)
    return same.get(digest, digest) if isinstance(same, dict) else digest


def template_prefix(definition: str) -> tuple[int, ...]:
    """Ids that the template of a tokenizer.json puts before a text."""
    encoding = tokenizers.Tokenizer.from_str(definition).encode("a", add_special_tokens=True)
    pairs = zip(encoding.ids, encoding.special_tokens_mask, strict=True)
    return tuple(number for number, _ in itertools.takewhile(lambda pair: pair[1] == 1, pairs))


def token_name(token: Any) -> str | None:
    """A special token in tokenizer_config.json is a string, or an object with its `content`."""
    name = token.get("content") if isinstance(token, dict) else token
    return name if isinstance(name, str) and name else None


def _known(role: str, known: Container[str]) -> str | None:
    return next((token for token in SPELLINGS[role] if token in known), None)


def _find_sentinels(known: Mapping[str, int]) -> tuple[int, ...]:
    for family in SENTINELS:
        matches = ((family.fullmatch(token), number) for token, number in known.items())
        numbered = {int(match[1]): number for match, number in matches if match}
        if 0 in numbered:
            without_gap = itertools.takewhile(numbered.__contains__, itertools.count())
            return tuple(numbered[index] for index in without_gap)
    return ()


def without_special_tokens(data: dict[str, Any], delimiters: set[str], roles: frozenset[int]) -> dict[str, Any]:
    """A clone with equal ids in which the special tokens, and those with a role, are spelled as no text is."""
    clone = {**data, "model": dict(data["model"])}
    added = clone["added_tokens"] = [dict(token) for token in data.get("added_tokens") or []]
    specials = delimiters | {token["content"] for token in added if token["special"] or token["id"] in roles}
    renamed = {token: UNSPELLABLE.format(number) for number, token in enumerate(sorted(specials))}
    for token in added:
        if token["content"] in renamed:
            token["content"], token["special"] = renamed[token["content"]], True
    clone["post_processor"] = clone["truncation"] = clone["padding"] = None
    _rename_in_model(clone["model"], renamed)
    return clone


def _rename_in_model(model: dict[str, Any], renamed: dict[str, str]) -> None:
    vocab = model["vocab"]
    if isinstance(vocab, dict):
        model["vocab"] = {renamed.get(token, token): number for token, number in vocab.items()}
    else:  # Unigram: pairs of piece and score
        model["vocab"] = [[renamed.get(token, token), score] for token, score in vocab]
    if model.get("unk_token") in renamed:
        model["unk_token"] = renamed[model["unk_token"]]
    if "merges" in model:
        pairs = [merge.split(" ") if isinstance(merge, str) else merge for merge in model["merges"]]
        model["merges"] = [[a, b] for a, b in pairs if not (a in renamed or b in renamed or a + b in renamed)]
