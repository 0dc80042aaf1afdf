"""Configuration of evaluation during training, and the base of evaluation tasks from other packages."""

from typing import Annotated, Any, Literal

from pydantic import Field

from hornbook.settings.fields import Config, Count, Duration, LocalPath, Number, named, open_to
from hornbook.text.config.labels import AnswerLabels


class TaskConfig(Config):
    """Base of evaluation tasks of other packages (docs/parts.md): settings, and how the task is built."""

    def build(self, context: Any) -> Any:
        """The `hornbook.evals.task.Task` of one evaluation; context: its `TaskContext`."""
        raise NotImplementedError


class OwnTask(TaskConfig):
    """Base of the tasks of this package: they are asked of decoders that predict tokens."""

    name: str = Field(default="", pattern=r"^[A-Za-z0-9_.-]*$")
    """Name of the measurements; by default the kind. Two tasks of one kind need different ones."""
    items: Count = Field(default=100, ge=2)
    """Items at most; of a file the first ones. Standard errors fall as their square root."""

    @property
    def label(self) -> str:
        """The name, or else the kind."""
        return self.name or str(getattr(self, "kind", ""))

    def build(self, context: Any) -> Any:
        return named("evals.tasks.build:build")(self, context)


class Cloze(OwnTask):
    """The next word of held-out passages, to be told from words of other passages by its likelihood."""

    kind: Literal["cloze"] = "cloze"
    choices: Count = Field(default=4, ge=2, le=100)
    """Words to choose from: chance is one of them."""
    words: Count = Field(default=40, ge=6)
    """Words of the passage that are read, at most."""


class Copy(OwnTask):
    """Random tokens that come twice: how well the second time is predicted (induction; Olsson et al. 2022)."""

    kind: Literal["copy"] = "copy"
    tokens: Count = Field(default=16, ge=2)
    """Tokens that are repeated."""


class Arithmetic(OwnTask):
    """Sums such as `7+5=12`, right where greedy decoding gives the whole result."""

    kind: Literal["arithmetic"] = "arithmetic"
    operations: list[Literal["+", "-", "*"]] = Field(default_factory=lambda: ["+", "-"], min_length=1)
    """Which, in turn; differences are not negative."""
    digits: Count = Field(default=1, ge=1, le=9)
    """Digits of the two numbers."""
    shots: Count = Field(default=3, ge=0, le=32)
    """Sums with results before each."""


class Recall(OwnTask):
    """Which of some facts was read before, after so many tokens of held-out text. `items` are for each distance."""

    kind: Literal["recall"] = "recall"
    facts: Count = Field(default=4, ge=2, le=32)
    """Facts to tell apart: chance is one of them."""
    distances: list[Annotated[Count, Field(ge=0)]] = Field(default_factory=list)
    """Tokens between facts and question; by default 0, 16, 32, 64 and so on as long as the model reads."""


class FileTask(OwnTask):
    """Base of tasks whose items are the rows of a local file: `.jsonl` or `.parquet`, compressed or not."""

    path: LocalPath = Field(min_length=1)
    """The file."""
    digest: str = Field(default="", pattern="^([0-9a-f]{32})?$")
    """XXH3-128 of the file, as `xxh128sum` prints it: a file that was changed is refused. Empty: any file."""
    items: Count = Field(default=1000, ge=2)
    """Items at most; of a file the first ones. Standard errors fall as their square root."""
    long: Literal["refuse", "cut"] = "refuse"
    """Prompts beyond what the model reads: refused before training, or cut at their beginning and counted."""


class MinimalPairs(FileTask):
    """Pairs of sentences of which one is right, such as BLiMP's: the likelier one should be."""

    kind: Literal["minimal_pairs"] = "minimal_pairs"
    good: str = "sentence_good"
    """Key of the right sentence."""
    bad: str = "sentence_bad"
    """Key of the wrong sentence."""


class MultipleChoice(FileTask):
    """Questions with answers to choose from, by their likelihood after the question."""

    kind: Literal["choices"] = "choices"
    prompt: str = "{question}"
    """The question; `{name}` stands for a value of the row."""
    choices: str = "choices"
    """Key of the list of answers."""
    answer: str = "answer"
    """Key of the right one: its index from 0, its letter, or its text."""
    before: str = " "
    """What stands before each answer."""


class ContinuationFile(FileTask):
    """Texts and what follows them: its loss, bits per byte, and whether greedy decoding gives it (LAMBADA)."""

    kind: Literal["continuation"] = "continuation"
    prompt: str = "{context}"
    """The text; `{name}` stands for a value of the row."""
    continuation: str = "{continuation}"
    """What follows, with the blank before it."""


class GenerationFile(FileTask):
    """Prompts whose answer the model writes by greedy decoding."""

    kind: Literal["generation"] = "generation"
    prompt: str = "{question}"
    """The prompt; `{name}` stands for a value of the row."""
    answer: str = "answer"
    """Key of the right answer, or of a list of right ones."""
    max_tokens: Count = Field(default=32, ge=1)
    """Tokens of an answer at most."""
    stop: list[str] = Field(default_factory=lambda: ["\n"])
    """Texts that end an answer."""
    normalize: bool = True
    """Compare as SQuAD does: without case, punctuation and articles. Else only outer white space is left out."""


class WrittenFile(FileTask):
    """Base of tasks whose rows are a text and what a person made of it; any file of a labelled set."""

    labels: AnswerLabels | None = None
    """Fields and template of the rows, as of `text.labels`; by default those of the data that the run has."""
    layout: Literal["auto", "parallel"] = "auto"
    """`parallel`: the endings of two files of lines are the fields (`test.de`, the path, and `test.en`)."""
    columns: list[str] = Field(default_factory=list)
    """Names of the columns of a .csv or .tsv file that has no header."""
    max_tokens: Count = Field(default=128, ge=1)
    """Tokens of an answer at most."""
    stop: list[str] = Field(default_factory=list)
    """Texts that end an answer, besides the end token."""
    beams: Count = Field(default=1, ge=1)
    """Texts that beam search grows side by side; 1 is greedy decoding."""
    length_penalty: float = 1.0
    """Of beam search: above 0 prefers longer texts, below 0 shorter ones."""


class Translation(WrittenFile):
    """Translations beside those of the file: BLEU and chrF, as sacrebleu computes them (extra `eval`)."""

    kind: Literal["translation"] = "translation"
    tokenize: Literal["13a", "intl", "zh", "char", "none", "ja-mecab", "ko-mecab"] = "13a"
    """BLEU's words: 13a as in WMT, zh for Chinese, char or ja-mecab for Japanese."""
    chrf_words: Literal[0, 2] = 0
    """2: chrF++, which counts pairs of words too."""


class Summarization(WrittenFile):
    """Summaries beside those of the file: F of ROUGE-1, 2 and L, as rouge-score computes them (extra `eval`)."""

    kind: Literal["summarization"] = "summarization"
    stem: bool = True
    """Compare the stems of English words (Porter's), as most published figures do."""


TaskKind = Annotated[
    Cloze
    | Copy
    | Arithmetic
    | Recall
    | MinimalPairs
    | MultipleChoice
    | ContinuationFile
    | GenerationFile
    | Translation
    | Summarization,
    Field(discriminator="kind"),
    *open_to("task", TaskConfig),
]


class NoStop(Config):
    """The run goes on to its planned end."""

    kind: Literal["none"] = "none"


class _Stop(Config):
    after: Duration = Duration(amount=0.5, unit="share")
    """Earliest point: a loss that stands still early may fall again."""
    rest: float = Field(default=0.1, ge=0, le=1)
    """Share of the tokens so far for which the run goes on, where the schedule has a lower learning rate ahead: the
    rest of the schedule happens in them, for it lowers the loss once more."""


class Patience(_Stop):
    """No validation loss was lower for some evaluations."""

    kind: Literal["patience"] = "patience"
    evaluations: Count = Field(default=10, ge=1)
    """Evaluations in a row."""
    gain: Number = Field(default=0.0, ge=0)
    """Nats by which a loss must be lower to count."""


class Converged(_Stop):
    """The expected gain of 10 % more tokens is small (`hornbook doctor RUN` shows it), or the loss rises for good."""

    kind: Literal["converged"] = "converged"
    evaluations: Count = Field(default=3, ge=1)
    """Evaluations in a row that must say so."""
    gain: Number = Field(default=0.001, gt=0)
    """Nats: the upper end of the gain's interval must be below."""


StopConfig = Annotated[NoStop | Patience | Converged, Field(discriminator="kind")]


class EvalConfig(Config):
    """Validation loss, bits-per-byte and samples while training."""

    every: Count = Field(default=250, ge=0)
    """Steps between evaluations; 0 evaluates only at the end."""
    tokens: Count = Field(default=262_144, gt=0)
    """Validation tokens per source and evaluation, at most: rows spread over all documents, always the same ones.

    After the last step all are scored.
    """
    tasks: list[TaskKind] = Field(default_factory=list)
    """Tasks that are scored besides, such as `{kind = "copy"}`, or of another package `{kind = "module:Class"}`."""
    share: float = Field(default=1.0, gt=0, le=1)
    """Largest share of the time of a run that evaluations may take before the last step.

    Where the next would pass it, tasks are left out; where that does not suffice, it comes later.
    """
    sample_every: Count = Field(default=0, ge=0)
    """Steps between samples of `prompt`; 0 means with each evaluation."""
    stop: StopConfig = NoStop()
    """When the run ends before its planned length, by its validation losses: `patience` or `converged`."""
    prompt: str = "The"
    """What samples continue; empty turns samples off."""
    sample_tokens: Count = Field(default=48, ge=1)
    """Length of a sample."""
