"""Configuration of the refinery: where text comes from, what is done to it, which tokenizer reads it."""

from typing import Annotated, Any, ClassVar, Literal, Self, get_args

from pydantic import Field, model_validator

from hornbook.settings.fields import Config, Count, LocalPath, open_to
from hornbook.text.config import content, duplicates, rules, scores
from hornbook.text.config.dates import Later
from hornbook.text.config.labels import LabelsConfig
from hornbook.text.config.modules import IMPORT_PATH, code_of
from hornbook.text.config.step import CutConfig, DecisionConfig, EditConfig, StepConfig


class SourceConfig(Config):
    """One named source of documents."""

    paths: list[str] = Field(min_length=1)
    """Files, folders, globs or fsspec URLs, `hf://datasets/...` too; docs/sources.md lists what is read."""
    layout: Literal["auto", "arxiv", "gutenberg", "parallel"] = "auto"
    """Formats that endings do not show: archives of LaTeX papers, texts between Project Gutenberg's licences, or with
    `text.labels` files of lines that belong together, whose endings are the fields of a row (`test.de` and `test.en`).
    """
    reader: str | None = Field(default=None, pattern=IMPORT_PATH, exclude_if=lambda reader: reader is None)
    """`package.module:function` that reads the files, whatever their endings (docs/sources.md)."""
    encoding: str = Field(default="", exclude_if=lambda encoding: not encoding)
    """Encoding of the files (`windows-1252`, `shift_jis`), by the web's names, then Python's; by default UTF-8, what a
    byte order mark says, and what pages, records and books declare.
    """
    columns: list[str] = Field(default_factory=list, exclude_if=lambda columns: not columns)
    """Names of the columns of .csv and .tsv files that have no header."""
    text_field: str = "text"
    """Column or key that holds the text (jsonl, json, csv, parquet, arrow); `a.b` is key b within a."""
    id_field: str = "id"
    """Column or key of the document's id; by default path and row number."""
    licence_field: str = "license"
    """Column or key of the document's licence."""
    url_field: str = "url"
    """Column or key of the URL that the document comes from."""
    date_field: str = "date"
    """Column or key of the date on which the document was written or fetched."""
    licence: str = ""
    """Licence of documents without one."""
    date: str = ""
    """Date of documents without one."""
    split: Literal["train", "validation"] | None = Field(default=None, exclude_if=lambda split: split is None)
    """Split of all documents, for sets published with splits; by default `text.validation` decides."""
    later: Later | None = Field(default=None, exclude_if=lambda later: later is None)
    """Documents held out by their dates, as the source NAME@later; `text.validation` decides about the others."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.later is not None and self.split is not None:
            raise ValueError(f"all documents go to {self.split}: leave out `split`, or `later`")
        if self.reader is not None and self.layout != "auto":
            raise ValueError("a reader of your own decides what a file holds: leave out `reader`, or `layout`")
        if self.encoding and self.reader is not None:
            raise ValueError("a reader of your own gets bytes and decodes them: leave out `reader`, or `encoding`")
        return self

    def reads(self) -> list[str]:
        """The files of a reader from outside, where they can be found: other code makes another corpus."""
        return [] if self.reader is None else [str(path) for path in code_of(self.reader.partition(":")[0])]


class NormalizeConfig(EditConfig):
    """Edit: normalise Unicode, set line ends to LF, remove control characters (NUL too)."""

    kind: Literal["normalize"] = "normalize"
    step = "steps.basics:Normalize"
    form: Literal["NFC", "NFKC", "none"] = "NFC"
    """Unicode normalisation form."""


class DropEmptyConfig(DecisionConfig):
    """Decision: drop documents without a visible character."""

    kind: Literal["drop_empty"] = "drop_empty"
    step = "steps.basics:DropEmpty"


class ExactDedupConfig(DecisionConfig):
    """Decision over all documents: keep the first of those with the same 128-bit hash of the edited text."""

    kind: Literal["exact_dedup"] = "exact_dedup"
    step = "steps.basics:ExactDedup"


class ExcludeConfig(DecisionConfig):
    """Decision: drop documents by name. `text.exclude` adds one after all others, so that duplicates are gone too."""

    kind: Literal["exclude"] = "exclude"
    step = "steps.basics:Exclude"
    documents: list[str]
    """Ids, `SOURCE::ID`, or origins."""


class PythonStepConfig(EditConfig):
    """Edit: a function of your own. It takes a `Document` and returns one, or its new text, or None to drop it."""

    kind: Literal["python"] = "python"
    step = "steps.basics:PythonStep"
    call: str = Field(pattern=IMPORT_PATH)
    """`package.module:function`, imported in every worker; its result must depend on the document alone."""

    def reads(self) -> list[str]:
        """The files of the module and of what it imports from its place: other code gives another corpus."""
        return [str(path) for path in code_of(self.call.partition(":")[0])]


ORDER = (EditConfig, DecisionConfig, CutConfig)
"""The order of steps in a recipe."""


AnyStep = Annotated[
    NormalizeConfig
    | PythonStepConfig
    | content.RepairConfig
    | content.PersonalConfig
    | content.BoilerplateConfig
    | content.SwapConfig
    | content.WordEditsConfig
    | DropEmptyConfig
    | ExactDedupConfig
    | rules.GopherQualityConfig
    | rules.GopherRepetitionConfig
    | rules.C4LinesConfig
    | rules.C4Config
    | rules.MC4Config
    | rules.FineWebConfig
    | scores.ClassifierConfig
    | scores.PerplexityConfig
    | scores.QuantilesConfig
    | scores.VocabularyConfig
    | content.HarmfulConfig
    | content.LanguageConfig
    | content.CodeConfig
    | content.MentionsConfig
    | content.RebalanceConfig
    | duplicates.NearDedupConfig
    | duplicates.DecontaminateConfig
    | duplicates.LineDedupConfig
    | duplicates.ParagraphDedupConfig
    | duplicates.SpanDedupConfig,
    Field(discriminator="kind"),
    *open_to("step", *ORDER),
]
KINDS = tuple(each.model_fields["kind"].default for each in get_args(get_args(AnyStep)[0]))
"""Kinds of steps that come with hornbook."""


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


class Trained(Config):
    """Settings of all tokenizers that are trained."""

    kind: Any
    vocab: Count = Field(default=16384, ge=257, le=2**31 - 1)
    """Size of the vocabulary, with special tokens; a little smaller where there is too little text."""
    train_bytes: Count = Field(default=256_000_000, gt=0)
    """Most text that the trainer reads; documents are sampled evenly over the corpus."""
    objectives: list[Objective] = Field(default_factory=lambda: ["causal"])
    """Training objectives of models with this tokenizer: the vocabulary has their special tokens."""
    sentinels: Count = Field(default=100, ge=1, le=10_000)
    """Number of sentinels for `span` and `ul2`: at least the number of spans in a sample."""

    always: ClassVar[tuple[str, ...]]
    """Roles that this kind has for any objective, in the order of their ids."""
    basis: ClassVar[int] = 256
    """Number of other tokens that any text may need: the bytes."""

    @property
    def roles(self) -> tuple[str, ...]:
        """Roles of the special tokens, each once, in the order of their ids."""
        return tuple(dict.fromkeys((*self.always, *(role for each in self.objectives for role in ROLES[each]))))

    @property
    def special_count(self) -> int:
        """Number of special ids."""
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


class BPE(Trained):
    """Train a byte-level BPE tokenizer on the prepared text; the file is the tokenizers library's, byte for byte."""

    kind: Literal["bpe"] = "bpe"
    always = ("end",)


class WordPiece(Trained):
    """Train a WordPiece tokenizer as BERT's: it keeps words, but not whitespace, nor (uncased) capitals and accents."""

    kind: Literal["wordpiece"] = "wordpiece"
    always = ("pad", "unk", "cls", "sep")
    basis = 0
    objectives: list[Objective] = Field(default_factory=lambda: ["masked"])
    """Training objectives of models with this tokenizer: the vocabulary has their special tokens."""
    lowercase: bool = True
    """Fold capitals and strip accents (BERT uncased)."""


class Unigram(Trained):
    """Train a unigram tokenizer as T5's, but lossless: whitespace stays, rare characters are spelled in bytes."""

    kind: Literal["unigram"] = "unigram"
    always = ("pad", "end", "unk")
    basis = 276
    train_bytes: Count = Field(default=32_000_000, gt=0)
    """Most text that the trainer reads; it takes some seconds per MB (more in scripts without spaces)."""
    objectives: list[Objective] = Field(default_factory=lambda: ["span"])
    """Training objectives of models with this tokenizer: the vocabulary has their special tokens."""


class TokenizerFile(Config):
    """Use an existing `tokenizer.json`."""

    kind: Literal["file"] = "file"
    path: LocalPath
    """A `tokenizer.json`, or a folder with one."""
    end_of_text: str | None = None
    """The token that delimits documents; by default the file's `<|endoftext|>`, `</s>`, `<eos>` or the like."""


TokenizerConfig = Annotated[BPE | WordPiece | Unigram | TokenizerFile, Field(discriminator="kind")]


class TextConfig(Config):
    """From raw text to token shards."""

    sources: dict[str, SourceConfig] = Field(default_factory=dict)
    """Named sources; `hornbook prepare PATH...` makes one per path."""
    labels: LabelsConfig | None = Field(default=None, exclude_if=lambda labels: labels is None)
    """Labels of a labelled set, and the fields that hold them; by default rows are text."""
    steps: list[AnyStep] = Field(
        default_factory=lambda: [NormalizeConfig(), DropEmptyConfig(), ExactDedupConfig()], max_length=255
    )
    """Steps of the refinery, in order: edits of the text first, then decisions about documents, then cuts."""
    exclude: list[str] = Field(default_factory=list, exclude_if=lambda names: not names)
    """Ids (of one source: `SOURCE::ID`) or origins (`path:row`) of documents to leave out, with their duplicates."""
    strict: bool = False
    """Stop at the first damaged row instead of counting it in quarantine."""
    max_document_bytes: Count = Field(default=16 * 2**20, ge=1024)
    """A longer plain-text file is split into several documents; a longer row is quarantined."""
    shard_bytes: Count = Field(default=256 * 2**20, gt=0)
    """Text per document shard; a shard is the unit of work and of resuming."""
    tokenizer: TokenizerConfig = BPE()
    """The tokenizer."""
    chat_template: str = Field(default="tokenizer", exclude_if=lambda name: name == "tokenizer")
    """What writes conversations as text: the tokenizer's own template (where it has none, `plain`), one of hornbook's
    (`plain`, `chatml`), or the path of a Jinja file.
    """
    validation: float = Field(default=0.01, ge=0, lt=1)
    """Share of documents held out for validation, chosen by a hash of their content."""
    bpe_dropout: float = Field(default=0.0, ge=0, lt=1, exclude_if=lambda probability: not probability)
    """Probability of leaving out a merge when training documents are encoded (BPE-dropout; 0.1 in its paper)."""
    bpe_dropout_seed: Count = Field(default=0, ge=0, lt=2**63, exclude_if=lambda seed: not seed)
    """Other seeds leave out other merges."""

    @property
    def all_steps(self) -> list[StepConfig]:
        """The steps, with one after the last decision that drops the documents in `exclude`."""
        exclude = [ExcludeConfig(documents=self.exclude)] if self.exclude else []
        return sorted([*self.steps, *exclude], key=lambda step: isinstance(step, CutConfig))  # in their order otherwise

    @model_validator(mode="after")
    def _check_dropout_and_labels(self) -> Self:
        if self.bpe_dropout and isinstance(self.tokenizer, WordPiece | Unigram):
            kind = self.tokenizer.kind
            raise ValueError(f"bpe_dropout leaves out merges, and a {kind} tokenizer has none: leave out bpe_dropout")
        if self.labels is None:
            return self
        if self.bpe_dropout:
            raise ValueError(
                "labels belong to tokens as the tokenizer makes them: with text.labels, leave out bpe_dropout"
            )
        harmless = NormalizeConfig | DropEmptyConfig | ExactDedupConfig
        odd = [step.label for step in self.steps if not isinstance(step, harmless)]
        if odd:
            raise ValueError(f"step {odd[0]!r} may move or cut labelled text: with text.labels, leave it out")
        named = [name for name, each in self.sources.items() if each.text_field != "text" or each.reader is not None]
        if named:
            raise ValueError(
                f"source {named[0]!r} has a text_field or a reader: with text.labels, that section names the fields"
            )
        return self

    @model_validator(mode="after")
    def _check_steps(self) -> Self:
        ranks = [next(rank for rank, kind in enumerate(ORDER) if isinstance(step, kind)) for step in self.steps]
        for before, after, step in zip(ranks, ranks[1:], self.steps[1:], strict=False):
            if after < before:
                raise ValueError(f"step {step.label!r} comes too late: edits come first, then decisions, then cuts")
        labels = [step.label for step in self.steps]
        if "kept" in labels:
            raise ValueError("no step can be named 'kept': that is the reason of documents that no step drops")
        twice = next((label for label in labels if labels.count(label) > 1), None)
        if twice:
            raise ValueError(f"two steps are named {twice!r}: give one of them a `name` of its own")
        return self
