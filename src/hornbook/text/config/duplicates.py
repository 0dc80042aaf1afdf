"""Configuration of the steps that find what stands in a corpus more than once, or in the sets of an evaluation."""

from typing import Literal, Self

from pydantic import Field, model_validator

from hornbook.settings.fields import Count
from hornbook.text.config.step import CutConfig, DecisionConfig, Words


class NearDedupConfig(DecisionConfig):
    """Decision over all documents: one of each cluster of near duplicates stays (MinHash, Broder 1997).

    Two documents that share the part s of their shingles meet with probability 1 - (1 - s ** rows) ** bands, which is
    1/2 at s = 0.68 for 14 bands of 8 rows. A cluster is what hangs together by such meetings.
    """

    kind: Literal["near_dedup"] = "near_dedup"
    step = "dedup.near_dedup:NearDedup"
    bands: Count = Field(default=14, ge=1, le=1024)
    """How many chances two documents have to meet."""
    rows: Count = Field(default=8, ge=1, le=64)
    """How many least hashes must be equal in a band."""
    shingle: Count = Field(default=5, ge=1, le=100)
    """Words of a shingle; shorter documents are one shingle."""
    words: Words = "cjk"
    """What a word is."""
    keep: str = Field(default="longest", min_length=1)
    """Which document of a cluster stays, the first of equals: `longest` (in bytes), `first`, or the best by a measured
    column, by its full name such as `classifier.score`."""
    lowest: bool = False
    """The best has the least value of that column, not the greatest."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.lowest and self.keep in ("longest", "first"):
            raise ValueError(f"lowest goes with a column to keep by, such as classifier.score, not with {self.keep!r}")
        return self


class LineDedupConfig(CutConfig):
    """Cut: lines that stand elsewhere too; the first of each stays."""

    kind: Literal["line_dedup"] = "line_dedup"
    step = "dedup.lines:LineDedup"
    min_bytes: Count = Field(default=40, ge=1)
    """Shorter lines stay, blanks at both ends aside: UTF-8, so a Chinese line of 14 characters counts as one of 42."""


class ParagraphDedupConfig(CutConfig):
    """Cut: paragraphs (lines between blank ones) that stand elsewhere too; the first of each stays."""

    kind: Literal["paragraph_dedup"] = "paragraph_dedup"
    step = "dedup.lines:ParagraphDedup"
    min_bytes: Count = Field(default=80, ge=1)
    """Shorter paragraphs stay, blanks at both ends aside, counted in UTF-8."""


class SpanDedupConfig(CutConfig):
    """Cut: passages of at least so many words that stand elsewhere too, exactly; the first of each stays."""

    kind: Literal["span_dedup"] = "span_dedup"
    step = "dedup.spans:SpanDedup"
    window: Count = Field(default=50, ge=5, le=10_000)
    """Words of the shortest passage that is cut (Lee et al. 2022: 50 tokens)."""
    words: Words = "cjk"
    """What a word is."""


class DecontaminateConfig(DecisionConfig):
    """Decision: documents that hold items of test sets, whole or in part. Case and punctuation make no difference."""

    kind: Literal["decontaminate"] = "decontaminate"
    step = "dedup.decontaminate:Decontaminate"
    paths: list[str] = Field(min_length=1)
    """Files of test sets: an item per row of `.jsonl` and `.parquet`, one per line of `.txt`; also `.gz`, `.zst`."""
    fields: list[str] = Field(default_factory=list)
    """Which keys of a row make the item, one after the other; by default all that hold text, lists and objects too."""
    ngram: Count = Field(default=13, ge=2, le=1000)
    """Words of the n-grams that must not occur (Brown et al. 2020: 13). Shorter items are sought as a whole."""
    min_words: Count = Field(default=8, ge=1)
    """Items with fewer words are not sought: they stand in innocent text."""
    max_hits: Count = Field(default=0, ge=0)
    """A document with more n-grams of items than that is dropped."""
    fuzzy_ngram: Count = Field(default=5, ge=1, le=1000)
    """Words of the n-grams by which altered items are found."""
    max_share: float = Field(default=0.3, gt=0, le=1)
    """A document is dropped that holds more than this share of an item's fuzzy n-grams; 1 turns this off."""
    words: Words = "cjk"
    """What a word is."""
    action: Literal["drop", "report"] = "drop"
    """Report keeps all documents: columns `hits`, `share` and `item` say what was found in each."""

    def reads(self) -> list[str]:
        """The test sets."""
        return list(self.paths)
