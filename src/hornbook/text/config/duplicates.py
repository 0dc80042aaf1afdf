"""Configuration of the steps that find text that occurs more than once, or in the test sets of an evaluation."""

from typing import Literal, Self

from pydantic import Field, model_validator

from hornbook.settings.fields import Count, LocalPath
from hornbook.text.config.step import CutConfig, DecisionConfig, Words


class NearDedupConfig(DecisionConfig):
    """Decision over all documents: keep one of each cluster of near duplicates (MinHash, Broder 1997).

    Two documents that share the fraction s of their shingles collide with probability 1 - (1 - s ** rows) ** bands,
    which is 1/2 at s = 0.68 for 14 bands of 8 rows. A cluster is a connected component of collisions.
    """

    kind: Literal["near_dedup"] = "near_dedup"
    step = "dedup.near_dedup:NearDedup"
    bands: Count = Field(default=14, ge=1, le=1024)
    """Bands of a signature; two documents collide where one band is equal."""
    rows: Count = Field(default=8, ge=1, le=64)
    """Least hashes in a band."""
    shingle: Count = Field(default=5, ge=1, le=100)
    """Words per shingle; a shorter document is one shingle."""
    words: Words = "cjk"
    """Definition of a word."""
    keep: str = Field(default="longest", min_length=1)
    """Which document of a cluster is kept (of equals the first): `longest` (in bytes), `first`, or the one with the
    greatest value in a measured column, by its full name such as `classifier.score`."""
    lowest: bool = False
    """Keep the least value of that column, not the greatest."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.lowest and self.keep in ("longest", "first"):
            raise ValueError(f"lowest goes with a column to keep by, such as classifier.score, not with {self.keep!r}")
        return self


class LineDedupConfig(CutConfig):
    """Cut: remove repeated lines; the first of each is kept."""

    kind: Literal["line_dedup"] = "line_dedup"
    step = "dedup.lines:LineDedup"
    min_bytes: Count = Field(default=40, ge=1)
    """Shorter lines are kept: UTF-8 without whitespace at the ends, so 14 Chinese characters are 42 bytes."""


class ParagraphDedupConfig(CutConfig):
    """Cut: remove repeated paragraphs (lines between empty ones); the first of each is kept."""

    kind: Literal["paragraph_dedup"] = "paragraph_dedup"
    step = "dedup.lines:LineDedup"
    min_bytes: Count = Field(default=80, ge=1)
    """Shorter paragraphs are kept: UTF-8 without whitespace at the ends."""


class SpanDedupConfig(CutConfig):
    """Cut: remove repeated passages of at least `window` words, exactly; the first of each is kept."""

    kind: Literal["span_dedup"] = "span_dedup"
    step = "dedup.spans:SpanDedup"
    window: Count = Field(default=50, ge=5, le=10_000)
    """Words of the shortest passage that is removed (Lee et al. 2022: 50 tokens)."""
    words: Words = "cjk"
    """Definition of a word."""


class DecontaminateConfig(DecisionConfig):
    """Decision: drop documents that contain items of test sets, whole or in part; case and punctuation are ignored."""

    kind: Literal["decontaminate"] = "decontaminate"
    step = "dedup.decontaminate:Decontaminate"
    paths: list[LocalPath] = Field(min_length=1)
    """Files of test sets: an item per row of `.jsonl` and `.parquet`, or per line of `.txt`; also `.gz`, `.zst`."""
    fields: list[str] = Field(default_factory=list)
    """Keys of a row whose texts, joined in this order, are the item; by default all, within lists and objects too."""
    ngram: Count = Field(default=13, ge=2, le=1000)
    """Words of the n-grams that must not occur (Brown et al. 2020: 13). Shorter items are looked for as a whole."""
    min_words: Count = Field(default=8, ge=1)
    """Items with fewer words are ignored: they occur in innocent text."""
    max_hits: Count = Field(default=0, ge=0)
    """A document with more n-grams of items is dropped."""
    fuzzy_ngram: Count = Field(default=5, ge=1, le=1000)
    """Words of the n-grams by which altered items are found."""
    max_share: float = Field(default=0.3, gt=0, le=1)
    """A document with more than this share of an item's fuzzy n-grams is dropped; 1 turns this off."""
    words: Words = "cjk"
    """Definition of a word."""
    action: Literal["drop", "report"] = "drop"
    """`report` keeps all documents: the columns `hits`, `share` and `item` say what was found in each."""

    def reads(self) -> list[str]:
        return list(self.paths)
