"""A tokenizer as hornbook uses it: text in, token ids out, and no text can produce a special token.

Any `tokenizer.json` of the tokenizers library is read. Encoding uses a clone in which every special token
has another spelling, one that no text has: so `<|endoftext|>` in a document is ordinary characters whether the
library would match it in the text (added tokens) or reach it through the model's own vocabulary. Decoding
uses the original.
"""

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import tokenizers
import xxhash

from hornbook.errors import IntegrityError, UsageError
from hornbook.files.strict_json import parse_json
from hornbook.text.tokenizer.bpe.tables import Merges, byte_characters, find_merges
from hornbook.text.tokenizer.pieces import Cutter, can_cut
from hornbook.text.tokenizer.special_tokens import (
    UNSPELLABLE,
    find_delimiters,
    find_special_tokens,
    original_digest,
    read_settings,
    require_form,
    without_special_tokens,
)

if TYPE_CHECKING:
    from hornbook.text.tokenizer.bpe.encode import Encoder
    from hornbook.text.tokenizer.bpe.tables import Draws

_BATCH = 1 << 20
_BYTE = re.compile("<0x[0-9A-F]{2}>")
"""How a byte is spelled that no token of the vocabulary has."""
_UNUSED_IDS = 1 << 16
"""Ids without a token that a vocabulary may have, beside as many as it has tokens: every id costs a row of a matrix."""
END_OF_TEXT = "<|endoftext|>"


class Tokenizer:
    """Encodes documents with their delimiters, and text without."""

    def __init__(self, definition: str, begin: str | None, end: str, settings: Mapping[str, Any] | None = None) -> None:
        """`definition` is the JSON of a tokenizer.json; `begin` and `end` name its delimiters, `settings` other tokens.

        Raises IntegrityError where the JSON is no tokenizer, UsageError where it lacks the named tokens.
        """
        self.definition = definition
        self._data, self._decoder, self.vocab_size = _parsed(definition)
        """`vocab_size`: largest token id plus one, special and added tokens included."""
        self.end_id = self._special_id(end)
        self.delimiter_id = self._special_id(begin) if begin else self.end_id
        self.begin, self.end = begin or end, end
        self._settings = settings or {}
        special = find_special_tokens(self._data, settings)
        self.special = replace(special, begin=self.delimiter_id, end=self.end_id)
        """Ids of the tokens that objectives need."""
        unknown = self._data["model"].get("unk_token")
        self.unknown_id = self._decoder.token_to_id(unknown) if unknown else self._data["model"].get("unk_id")
        """Token of what cannot be encoded; None for byte-level tokenizers, which encode everything."""

    @classmethod
    def load(cls, path: str | os.PathLike[str], end_of_text: str | None = None) -> "Tokenizer":
        """Read a tokenizer.json, or the folder that holds one.

        The delimiters are those of tokenizer_config.json beside it (bos_token and eos_token, or cls_token and
        sep_token) where there is one, else known spellings; `end_of_text` names the end token where neither finds it.
        """
        file = Path(path)
        file = file / "tokenizer.json" if file.is_dir() else file
        try:
            definition = file.read_text(encoding="utf-8")
        except FileNotFoundError as error:
            raise UsageError(f"{file} does not exist: give a tokenizer.json or a folder that holds one") from error
        except OSError as error:
            raise UsageError(f"{file} cannot be read: {error.strerror}") from error
        except ValueError as error:
            raise IntegrityError(f"{file} is not a tokenizer.json: {error}") from error
        try:
            settings = read_settings(file.parent)
            delimiters = choose_delimiters(_parsed(definition)[0], settings, end_of_text)
            return _made(definition, *delimiters, json.dumps(settings))
        except (UsageError, IntegrityError) as error:
            raise type(error)(f"{file}: {error}") from error

    @cached_property
    def _plain(self) -> dict[str, Any]:
        """The definition without special tokens; this and what is made of it waits for the first text to encode."""
        return without_special_tokens(self._data, {self.begin, self.end}, self.special.ids)

    @cached_property
    def _encoder(self) -> tokenizers.Tokenizer:
        encoder = tokenizers.Tokenizer.from_str(json.dumps(self._plain))
        encoder.encode_special_tokens = True
        return encoder

    @cached_property
    def merges(self) -> Merges | None:
        """Where this is byte-level BPE that our kernels know, else None."""
        return find_merges(self._plain)

    @cached_property
    def _cutter(self) -> Cutter | None:
        if self.merges or not can_cut(self._data):
            return None
        splitter = self._encoder.pre_tokenizer
        assert splitter is not None  # else nothing can be cut
        added = self._data.get("added_tokens") or []
        return Cutter(splitter, tuple(token["content"] for token in added if not token["special"]))

    @cached_property
    def digest(self) -> str:
        """xxh3_128 of the tokenizer.json and of the delimiters, as hex; of the one it was made of, where it says so."""
        text = f"{self.definition}\n{self.delimiter_id} {self.end_id}"
        return original_digest(xxhash.xxh3_128_hexdigest(text.encode()), self._settings)

    def encode(self, text: str) -> list[int]:
        """Token ids of a text; none of them is special."""
        return self._encoder.encode(text, add_special_tokens=False).ids

    @cached_property
    def _longest(self) -> int | None:
        """Bytes that one token stands for at most; None where nobody knows: a normaliser or an unknown token."""
        if self.merges is None:
            return None
        return max(len(token.encode()) for token in self._decoder.get_vocab(with_added_tokens=True))

    def is_longer(self, text: str, tokens: int) -> bool:
        """Whether a text has more tokens than so many, as far as its size tells it without encoding it."""
        if len(text) <= tokens or self._longest is None:
            return False
        return len(text.encode("utf-8", "surrogatepass")) > tokens * self._longest

    def encode_as_stored(self, text: str) -> list[int]:
        """Token ids as `tokenizer.json` says: special tokens of its template, and those that the text spells.

        So does transformers with an exported model, whose results others compare with.
        """
        return self._decoder.encode(text).ids

    def encode_parts(self, parts: Iterable[tuple[str, bool]]) -> list[int]:
        """Token ids of pieces of one text, of which each says whether special tokens are meant where it spells them."""
        return self._marker.encode("".join(self._respelled(parts)), add_special_tokens=False).ids

    def encode_spans(self, parts: Iterable[tuple[str, bool]]) -> tuple[list[int], list[tuple[int, int]]]:
        """The same, and of each token the numbers of the first and the last piece that it has characters of."""
        words = self._respelled(parts)
        ends = np.cumsum([len(word) for word in words])
        encoding = self._marker.encode("".join(words), add_special_tokens=False)
        starts = np.array([start for start, _ in encoding.offsets], np.int64)
        lasts = np.array([max(end - 1, start) for start, end in encoding.offsets], np.int64)
        first, last = (np.minimum(np.searchsorted(ends, each, side="right"), len(ends) - 1) for each in (starts, lasts))
        return encoding.ids, list(zip(first.tolist(), last.tolist(), strict=True))

    @property
    def special_spellings(self) -> list[str]:
        """How special tokens are spelled, longest first."""
        return sorted(self._unspellable, key=len, reverse=True)

    def _respelled(self, parts: Iterable[tuple[str, bool]]) -> list[str]:
        """The pieces as the clone spells them."""
        spelled = self._unspellable
        pattern = re.compile("|".join(map(re.escape, self.special_spellings)) or "(?!)")
        return [
            pattern.sub(lambda match: spelled[match[0]], text) if meant else text.replace(UNSPELLABLE[0], "\ufffd")
            for text, meant in parts
        ]

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """Ids that no text produces: of the special tokens that `tokenizer.json` adds to its vocabulary."""
        return frozenset(
            each["id"] for each in self._data.get("added_tokens") or [] if each["content"] in self._unspellable
        )

    @cached_property
    def _unspellable(self) -> dict[str, str]:
        """Spelling of each special token -> its spelling in the clone."""
        clone = {each["id"]: each["content"] for each in self._plain["added_tokens"]}
        names = {each["content"]: clone[each["id"]] for each in self._data.get("added_tokens") or []}
        return {name: other for name, other in names.items() if name != other}

    @cached_property
    def _marker(self) -> tokenizers.Tokenizer:
        """As `_encoder`, but the clone's spellings of special tokens make special tokens."""
        return tokenizers.Tokenizer.from_str(json.dumps(self._plain))

    def encode_offsets(self, texts: Sequence[str]) -> list[tuple[list[int], list[tuple[int, int]]]]:
        """(token ids, span in characters of each token) of several texts."""
        encodings = self._encoder.encode_batch(list(texts), add_special_tokens=False)
        return [(each.ids, each.offsets) for each in encodings]

    @property
    def ends_between(self) -> int:
        """End tokens between the two texts of a pair: as in the template of tokenizer.json, else one."""
        template = self._data.get("post_processor") or {}
        template = template.get("processors", [template])[-1]
        if template.get("type") == "RobertaProcessing":
            return 2
        parts = [next(iter(part.items())) for part in template.get("pair") or []]
        texts = [number for number, (kind, _) in enumerate(parts) if kind == "Sequence"]
        return max(texts[1] - texts[0] - 1, 1) if len(texts) == 2 else 1

    def encode_arrays(self, texts: Sequence[str], draws: "Draws | None" = None) -> list[np.ndarray]:
        """Documents as stored, each uint32 [tokens]: the delimiter first; the end token last too where it is another.

        Memory is bounded by the ids and about 1 MiB of text.
        By our own kernels where they know the tokenizer and are compiled (`bpe/choice`), else by the library: the ids
        are the same. `draws` (of each text) leaves out merges by chance; UsageError where the kernels do not know the
        tokenizer.
        """
        from hornbook.text.store import batched

        if draws is not None:
            self.require_merges()
        head = np.array([self.delimiter_id], np.uint32)
        tail = np.array([] if self.end_id == self.delimiter_id else [self.end_id], np.uint32)
        parts: list[list[np.ndarray]] = [[head] for _ in texts]
        for batch in batched(self._pieces(texts), lambda piece: len(piece[1]), _BATCH):
            documents, pieces = zip(*batch, strict=True)
            chosen = None if draws is None else type(draws)(*(each[list(documents)] for each in draws))
            for document, ids in zip(documents, self._encode_batch(pieces, chosen), strict=True):
                parts[document].append(ids)
        return [np.concatenate([*part, tail]) for part in parts]

    def require_merges(self) -> None:
        """Raise UsageError unless this is byte-level BPE that our kernels encode, so that merges can be left out."""
        if self.merges is None:
            raise UsageError(
                "text.bpe_dropout leaves out merges of byte-level BPE, and this tokenizer is another kind, or one that "
                "hornbook's kernels do not know: set text.bpe_dropout=0, or train one (text.tokenizer.kind=bpe)"
            )

    def _encode_batch(self, texts: Sequence[str], draws: "Draws | None" = None) -> list[np.ndarray]:
        if draws is not None or self._kernel_is_ready:
            return self._kernel.encode(texts, draws=draws)
        encodings = self._encoder.encode_batch_fast(texts, add_special_tokens=False)
        return [np.array(encoding.ids, np.uint32) for encoding in encodings]

    @cached_property
    def _kernel_is_ready(self) -> bool:
        from hornbook.text.tokenizer.bpe.choice import encoding_is_compiled

        return self.merges is not None and encoding_is_compiled()

    @cached_property
    def _kernel(self) -> "Encoder":
        """Made when documents are first encoded: a prompt is encoded sooner than kernels are loaded."""
        from hornbook.text.tokenizer.bpe.encode import Encoder

        assert self.merges is not None
        return Encoder(self.merges)

    def _pieces(self, texts: Sequence[str]) -> Iterator[tuple[int, str]]:
        """(number of the document, piece of its text)"""
        for number, text in enumerate(texts):
            pieces = (text,) if self._cutter is None else self._cutter.cut(text)
            yield from ((number, piece) for piece in pieces)

    def decode(self, ids: Iterable[int]) -> str:
        """The text of token ids; special tokens appear as they are spelled. Bytes that are no UTF-8 become U+FFFD."""
        return self._decoder.decode(list(ids), skip_special_tokens=False)

    def spell(self, number: int) -> str:
        """How a token is written in the vocabulary."""
        token = self._decoder.id_to_token(number)
        assert token is not None, number
        return token

    def bytes_of(self, number: int) -> bytes | None:
        """UTF-8 bytes of a token within a text; None where it is part of a character and nobody knows its bytes."""
        if "\ufffd" not in (text := self.decode([number])):
            return self.decode([number, number])[len(text) :].encode()  # some decoders drop the blank of a first token
        token, values = self.spell(number), {character: byte for byte, character in enumerate(byte_characters())}
        if _BYTE.fullmatch(token):
            return bytes([int(token[3:5], 16)])
        return bytes(values[each] for each in token) if values.keys() >= {*token} else None

    @cached_property
    def has_byte_fallback(self) -> bool:
        """Characters beyond the vocabulary are runs of byte tokens, each U+FFFD until the whole run is valid UTF-8."""
        return '"ByteFallback"' in json.dumps(self._data.get("decoder"))

    def token_bytes(self) -> np.ndarray:
        """UTF-8 bytes each token stands for, int32 [vocab_size]; 0 for special tokens and unused ids.

        Exact for byte-level tokenizers, and for those we train but WordPiece. For others it is the length of the
        spelling with the word-boundary mark read as a blank and byte tokens `<0x0A>` as one byte: off by the blank that
        some put before a text, and by all blanks where the tokenizer drops them (WordPiece).
        """
        sizes = np.zeros(self.vocab_size, dtype=np.int32)
        around = [self._data.get(part) for part in ("normalizer", "pre_tokenizer", "decoder")]
        byte_level = '"ByteLevel"' in json.dumps(around[1:])
        blank = "\u2581" if "\u2581" in json.dumps(around, ensure_ascii=False) else None
        inside = self._data["model"].get("continuing_subword_prefix") or ""
        added = {token["id"]: token for token in self._data.get("added_tokens", [])}
        specials = self.special.ids | {number for number, each in added.items() if each["special"]}
        for token, number in self._decoder.get_vocab(with_added_tokens=True).items():
            if number not in specials:
                plain = not byte_level or number in added
                sizes[number] = _spelling_bytes(token.removeprefix(inside), blank) if plain else len(token)
        return sizes

    def _special_id(self, token: str) -> int:
        number = self._decoder.token_to_id(token)
        if number is None:
            raise UsageError(f"the tokenizer has no token {token!r}")
        return number


@lru_cache(maxsize=2)
def _parsed(definition: str) -> tuple[dict[str, Any], tokenizers.Tokenizer, int]:
    """(its JSON, the tokenizer, ids that there are); other settings beside the same definition change none of them."""
    try:
        data: dict[str, Any] = parse_json(definition)
        require_form(data)
        made = tokenizers.Tokenizer.from_str(definition)
        vocab = made.get_vocab(with_added_tokens=True)
    except Exception as error:  # the library raises plain Exception for all that is wrong
        raise IntegrityError(f"this is not a tokenizer.json: {error}") from error
    token, largest = max(vocab.items(), key=lambda item: item[1], default=("", -1))
    if largest >= 2 * len(vocab) + _UNUSED_IDS:
        raise IntegrityError(
            f"this is not a tokenizer.json: {token[:40]!a} has the id {largest}, and there are {len(vocab)} tokens"
        )
    return data, made, largest + 1


@lru_cache(maxsize=2)
def _made(definition: str, begin: str | None, end: str, settings: str) -> Tokenizer:
    """A tokenizer read before is not made again: one of 32k tokens takes half a second, and nothing changes it."""
    return Tokenizer(definition, begin, end, json.loads(settings))


def _spelling_bytes(token: str, blank: str | None) -> int:
    if _BYTE.fullmatch(token):
        return 1
    return len((token.replace(blank, " ") if blank else token).encode())


def choose_delimiters(
    data: dict[str, Any], settings: Mapping[str, Any], end_of_text: str | None = None
) -> tuple[str | None, str]:
    """(begin-of-text token or None, end-of-text token); UsageError where no end is known and none is named."""
    begin, end = find_delimiters(data, settings)
    end = end_of_text or end
    if end is None:
        known = [token["content"] for token in data.get("added_tokens") or []]
        raise UsageError(
            f'no end-of-text token is known among {known[:12]}; name it: text.tokenizer.end_of_text = "..."'
        )
    return begin, end
