"""Configuration of the refinery: where text comes from, what is done to it, which tokenizer reads it."""

from typing import Annotated, ClassVar, Generic, Literal, Self, TypeVar

from pydantic import Field, model_validator

from hornbook.fields import Config, Count


class SourceConfig(Config):
    """One named source of documents."""

    paths: list[str] = Field(min_length=1)
    """Files, folders, globs or fsspec URLs; `.txt .md .py .jsonl .jsonl.gz .jsonl.zst .parquet` are read."""
    text_field: str = "text"
    """Column or key that holds the text (jsonl, parquet)."""
    id_field: str = "id"
    """Column or key that names the document; where a row lacks it, path and row number do."""


class Normalize(Config):
    """Edit: Unicode normalisation, line ends to LF, control characters (NUL too) removed."""

    kind: Literal["normalize"] = "normalize"
    form: Literal["NFC", "NFKC", "none"] = "NFC"
    """Unicode normalisation form."""


class DropEmpty(Config):
    """Decision: drop documents without a visible character."""

    kind: Literal["drop_empty"] = "drop_empty"


class ExactDedup(Config):
    """Decision over all documents: keep the first of each group with the same 128-bit hash of the edited text."""

    kind: Literal["exact_dedup"] = "exact_dedup"


StepConfig = Annotated[Normalize | DropEmpty | ExactDedup, Field(discriminator="kind")]


Objective = Literal["causal", "prefix", "fim", "masked", "infill", "span", "ul2"]

ROLES: dict[str, tuple[str, ...]] = {
    "causal": (),
    "prefix": (),
    "fim": ("prefix", "suffix", "middle"),
    "masked": ("pad", "mask"),
    "infill": ("pad", "mask"),
    "span": ("pad", "sentinels"),
    "ul2": ("pad", "sentinels", "R", "S", "X"),
}
"""Objective -> the special tokens it needs beside the delimiters of documents (`text.special_tokens`)."""


Kind = TypeVar("Kind", bound=str)


class Trained(Config, Generic[Kind]):
    """What all tokenizers that are trained have."""

    kind: Kind
    vocab: Count = Field(default=16384, ge=257, le=2**31 - 1)
    """Size of the vocabulary, special tokens included; a little less where there is too little text."""
    train_bytes: Count = Field(default=256_000_000, gt=0)
    """How much text the trainer reads at most; documents are taken evenly over the corpus."""
    objectives: list[Objective] = Field(default_factory=lambda: ["causal"])
    """What models with this tokenizer will be trained on: the vocabulary holds the special tokens for it."""
    sentinels: Count = Field(default=100, ge=1, le=10_000)
    """How many sentinels there are for `span` and `ul2`: at least as many as a sample has spans."""

    always: ClassVar[tuple[str, ...]]
    """Roles that this kind has for any objective, in the order of their ids."""
    basis: ClassVar[int] = 256
    """How many other tokens are there for any text: the bytes."""

    @property
    def roles(self) -> tuple[str, ...]:
        """Roles of the special tokens, each once, in the order of their ids."""
        return tuple(dict.fromkeys((*self.always, *(role for each in self.objectives for role in ROLES[each]))))

    @property
    def special_count(self) -> int:
        """How many ids are special."""
        return len(self.roles) + ("sentinels" in self.roles) * (self.sentinels - 1)

    @model_validator(mode="after")
    def _check(self) -> Self:
        least = self.special_count + self.basis
        if self.vocab < least:
            raise ValueError(
                f"a vocab of {self.vocab} has no room for {self.special_count} special tokens and {self.basis} "
                f"that any text may need: take at least {least}, or fewer objectives or sentinels"
            )
        return self


class BPE(Trained[Literal["bpe"]]):
    """Train a byte-level BPE tokenizer on the prepared text (tokenizers library)."""

    kind: Literal["bpe"] = "bpe"
    always = ("end",)


class WordPiece(Trained[Literal["wordpiece"]]):
    """Train a WordPiece tokenizer as BERT's: it keeps words, not blanks or (uncased) capitals and accents."""

    kind: Literal["wordpiece"] = "wordpiece"
    always = ("pad", "unk", "cls", "sep")
    basis = 0
    objectives: list[Objective] = Field(default_factory=lambda: ["masked"])
    """What models with this tokenizer will be trained on: the vocabulary holds the special tokens for it."""
    lowercase: bool = True
    """Fold capitals and strip accents (BERT uncased)."""


class Unigram(Trained[Literal["unigram"]]):
    """Train a unigram tokenizer as T5's that loses nothing: blanks stay, rare letters are spelled in bytes."""

    kind: Literal["unigram"] = "unigram"
    always = ("pad", "end", "unk")
    basis = 276
    train_bytes: Count = Field(default=32_000_000, gt=0)
    """How much text the trainer reads at most; it takes some seconds per MB (more where words have no blanks)."""
    objectives: list[Objective] = Field(default_factory=lambda: ["span"])
    """What models with this tokenizer will be trained on: the vocabulary holds the special tokens for it."""


class TokenizerFile(Config):
    """Use an existing `tokenizer.json`."""

    kind: Literal["file"] = "file"
    path: str
    """A `tokenizer.json`, or a folder that holds one."""
    end_of_text: str | None = None
    """The token that delimits documents; by default the file's `<|endoftext|>`, `</s>`, `<eos>` or the like."""


TokenizerConfig = Annotated[BPE | WordPiece | Unigram | TokenizerFile, Field(discriminator="kind")]


class TextConfig(Config):
    """From raw text to token shards."""

    sources: dict[str, SourceConfig] = Field(default_factory=dict)
    """Named sources; `hornbook prepare PATH...` makes one per path."""
    steps: list[StepConfig] = Field(default_factory=lambda: [Normalize(), DropEmpty(), ExactDedup()])
    """Edits first, then decisions, in this order."""
    strict: bool = False
    """Stop at the first damaged row instead of counting it in quarantine."""
    max_document_bytes: Count = Field(default=16 * 2**20, ge=1024)
    """A longer plain-text file is split into several documents; a longer row is quarantined."""
    shard_bytes: Count = Field(default=256 * 2**20, gt=0)
    """Text per document shard; a shard is the unit of work and of resuming."""
    tokenizer: TokenizerConfig = BPE()
    """How text becomes tokens."""
    validation: float = Field(default=0.01, ge=0, lt=1)
    """Share of documents held out for validation, chosen by a hash of their content."""
