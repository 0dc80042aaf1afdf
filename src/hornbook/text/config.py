"""Configuration of the refinery: where text comes from, what is done to it, which tokenizer reads it."""

from typing import Annotated, Literal

from pydantic import Field

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


class BPE(Config):
    """Train a byte-level BPE tokenizer on the prepared text (tokenizers library)."""

    kind: Literal["bpe"] = "bpe"
    vocab: Count = Field(default=16384, ge=257, le=2**31 - 1)
    """Size of the vocabulary, special tokens included."""
    train_bytes: Count = Field(default=256_000_000, gt=0)
    """How much text the trainer reads at most; documents are taken evenly over the corpus."""


class TokenizerFile(Config):
    """Use an existing `tokenizer.json`."""

    kind: Literal["file"] = "file"
    path: str
    """A `tokenizer.json`, or a folder that holds one."""
    end_of_text: str | None = None
    """The token that delimits documents; by default the file's `<|endoftext|>`, `</s>`, `<eos>` or the like."""


TokenizerConfig = Annotated[BPE | TokenizerFile, Field(discriminator="kind")]


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
