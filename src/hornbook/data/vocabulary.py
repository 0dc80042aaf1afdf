"""A tokenizer as objectives use it: which ids are special, which continue a word, which end a sentence."""

import json
from dataclasses import asdict
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Int32

from hornbook.data.corpus import Corpus
from hornbook.data.objectives.word_edges import Edges, edges_of_alphabet, edges_of_text, goes_on
from hornbook.errors import IntegrityError, UsageError, quoted
from hornbook.text.config.text import ROLES
from hornbook.text.tokenizer.special_tokens import find_special_tokens
from hornbook.text.tokenizer.tokenizer import Tokenizer, read_settings


def load_vocabulary(corpus: Corpus) -> "Vocabulary":
    """The vocabulary of a corpus, cached for repeated evaluations.

    Raises UsageError or IntegrityError where the tokenizer is not there, damaged, or another one.
    """
    vocabulary = _load(corpus.root, corpus.tokenizer_digest, corpus.vocab_size)
    if vocabulary.tokenizer.digest != corpus.tokenizer_digest:
        raise IntegrityError(
            f"{vocabulary.path} is not the tokenizer that made the token shards: restore it, "
            f"or run `hornbook tokenize {quoted(corpus.root)}` again"
        )
    return vocabulary


@lru_cache(maxsize=2)
def _load(root: Path, digest: str, size: int) -> "Vocabulary":
    del digest  # another tokenizer in the same folder is another vocabulary
    return Vocabulary(root / "tokenizer", size)


class Vocabulary:
    """Properties of the ids of a tokenizer."""

    def __init__(self, path: Path, size: int) -> None:
        """`path`: the folder of the tokenizer; `size`: number of ids."""
        self.path, self.size = path, size
        self.tokenizer = Tokenizer.load(path)
        self.end_id, self.delimiter_id = self.tokenizer.end_id, self.tokenizer.delimiter_id
        self._data: dict[str, Any] = json.loads(self.tokenizer.definition)
        self.special = find_special_tokens(self._data, read_settings(self.path))
        """Ids by role."""

    def lacks(self, key: str, what: str, objective: str, spellings: str) -> UsageError:
        """The error that setting `key` needs special tokens which the tokenizer does not have."""
        roles = {role for role, ids in asdict(self.special).items() if ids not in (None, ())} | {*self.special.modes}
        wanted = [name for name, needed in ROLES.items() if needed and roles.issuperset(needed)] + [objective]
        kind = {"WordPiece": "wordpiece", "Unigram": "unigram"}.get(self._data["model"]["type"], "bpe")
        options = f"--text.tokenizer.kind {kind} --vocab {self.size} --text.tokenizer.objectives {','.join(wanted)}"
        return UsageError(
            f"{key} needs {what}, and {self.path} has none: `hornbook tokenize {quoted(self.path.parent)} {options} "
            f"--overwrite` trains one (then no run on the old tokens can be resumed); or take one with {spellings}"
        )

    @property
    def begin_id(self) -> int | None:
        """The token that begins a document, where that is not the one that ends it."""
        return self.delimiter_id if self.delimiter_id != self.end_id else None

    @property
    def pad_id(self) -> int:
        """The padding token, or the end token where there is none."""
        return self.end_id if self.special.pad is None else self.special.pad

    @cached_property
    def spellings(self) -> dict[str, int]:
        """Token -> id, added tokens included."""
        vocab = self._data["model"]["vocab"]
        plain = vocab if isinstance(vocab, dict) else {piece: number for number, (piece, _) in enumerate(vocab)}
        return plain | {token["content"]: token["id"] for token in self._data.get("added_tokens") or []}

    @cached_property
    def is_special(self) -> Bool[np.ndarray, " vocab"]:
        """True for ids without text; they are never masked."""
        marked = {token["id"] for token in self._data.get("added_tokens") or [] if token["special"]}
        table = np.zeros(self.size, np.bool_)
        table[[*(marked | self.special.ids | {self.end_id, self.delimiter_id})]] = True
        return table

    @cached_property
    def ordinary(self) -> Int32[np.ndarray, " ids"]:
        """Ids with text, ascending: random tokens are drawn from them."""
        known = np.zeros(self.size, np.bool_)
        known[list(self.spellings.values())] = True
        return np.flatnonzero(known & ~self.is_special).astype(np.int32)

    @cached_property
    def ends_sentence(self) -> Bool[np.ndarray, " vocab"]:
        """Ids whose text ends with a full stop."""
        return self._table(lambda token: token.endswith("."))

    @cached_property
    def begins_inside(self) -> Bool[np.ndarray, " vocab"]:
        """Ids that continue the word before them, if that may go on (`ends_inside`)."""
        return self._table(lambda token: self._edges(token).begins_inside)

    @cached_property
    def ends_inside(self) -> Bool[np.ndarray, " vocab"]:
        """Ids after which a word may go on."""
        return self._table(lambda token: self._edges(token).ends_inside)

    def _edges(self, token: str) -> Edges:
        mark = self._continuation
        if not mark:
            return edges_of_alphabet(token) if self._byte_level else edges_of_text(token)
        inside, text = token.startswith(mark), token.removeprefix(mark) or mark
        return Edges(inside and goes_on(text[0]), goes_on(text[-1]))  # the mark says what continues a word (WordPiece)

    @property
    def _continuation(self) -> str:
        return (self._data["model"].get("continuing_subword_prefix") or "") if not self._byte_level else ""

    @cached_property
    def _byte_level(self) -> bool:
        return '"ByteLevel"' in json.dumps([self._data.get("pre_tokenizer"), self._data.get("decoder")])

    def _table(self, test: Any) -> Bool[np.ndarray, " vocab"]:
        table = np.zeros(self.size, np.bool_)
        for token, number in self.spellings.items():
            table[number] = bool(token) and test(token)
        return table & ~self.is_special
