"""The objectives of this package: settings of each, and how it is built."""

import math
from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field

from hornbook.data.config.objective import Component, Family, Noise, Objective, Start
from hornbook.data.config.preferences import DPO, IPO, KTO, ORPO, Reward
from hornbook.settings.fields import Config, Number, named, open_to


class Causal(Objective):
    """Predict each token from those before it."""

    kind: Literal["causal"] = "causal"


class Prefix(Objective):
    """Prefix LM (arXiv 1910.10683, section 3.2.1): a leading part is seen in both directions, the rest is predicted."""

    kind: Literal["prefix"] = "prefix"

    def transform(self, context: Any, key: str) -> Any:
        del context, key
        return named("data.objectives.prefix:Prefixing")()


class FillInTheMiddle(Objective):
    """Causal on documents of which some have their middle moved to the end (Bavarian et al. 2022, arXiv 2207.14255).

    The cuts are made once per seed, at characters, and kept beside the shards; evaluation is on unchanged text.
    """

    kind: Literal["fim"] = "fim"
    rate: Number = Field(default=0.5, gt=0, le=1)
    """Share of documents that are rearranged."""
    suffix_first: Number = Field(default=0.5, ge=0, le=1)
    """Of those, the share in the order suffix, prefix, middle; the others are prefix, suffix, middle."""

    def training_corpus(self, corpus: Any, seed: int) -> Any:
        """With some of the training documents rearranged."""
        return named("data.objectives.fim:rearranged")(corpus, self, seed)

    @property
    def evaluation_key(self) -> str:
        """That of a causal objective: evaluation is on unchanged text."""
        return Causal().model_dump_json()


class _Masking(Objective):
    """Base of the objectives that mask tokens."""

    family: ClassVar[Family] = "encoder"
    all_masked: ClassVar[bool] = False
    """No chosen token is kept, or replaced by a random one."""
    detects: ClassVar[bool] = False
    """Something is told of every token, and not of the chosen ones alone."""
    rate: Number = Field(default=0.15, gt=0, lt=1)
    """Share of a row's ordinary tokens that is chosen, rounded to whole tokens; ModernBERT trains with 0.3."""
    eval_rate: Number | None = Field(default=None, gt=0, lt=1)
    """The same for evaluation; by default `rate`. Losses at different rates cannot be compared."""
    whole_word: bool = False
    """Choose all tokens of a word or none."""
    dynamic: bool = True
    """Choose anew each time a row is seen (RoBERTa, arXiv 1907.11692); else as the first time."""

    def transform(self, context: Any, key: str) -> Any:
        """Masks rows. Raises UsageError where the tokenizer has no mask token."""
        return named("data.objectives.masked:Masking")(self, context, key)

    @property
    def evaluation_key(self) -> str:
        """The settings of evaluation alone."""
        kind = getattr(self, "kind", "masked")
        return f"{kind} {self.rate if self.eval_rate is None else self.eval_rate} {self.whole_word}"


class Masked(_Masking):
    """Masked LM (BERT, arXiv 1810.04805): predict chosen tokens, of which 80 % are masked, 10 % random, 10 % kept."""

    kind: Literal["masked"] = "masked"


class Replaced(_Masking):
    """Replaced-token detection (ELECTRA, arXiv 2003.10555): a generator fills the masks, the model tells which tokens
    are not the original; for encoders with the head `replaced`."""

    all_masked: ClassVar[bool] = True
    detects: ClassVar[bool] = True
    kind: Literal["replaced"] = "replaced"


class Span(Objective):
    """Span corruption for encoder-decoders (T5, arXiv 1910.10683): sentinels for spans, which the target spells out."""

    kind: Literal["span"] = "span"
    density: Number = Field(default=0.15, gt=0, lt=1)
    """Share of tokens that is taken out."""
    mean_span: Number = Field(default=3.0, ge=1)
    """Mean length of a span, in tokens."""
    start: Start = "pad"
    """First token of the decoder's input; where the tokenizer has no padding token, `pad` means the end token."""

    def components(self, key: str = "data.objective", weight: float = 1.0) -> Iterator[Component]:
        yield Component(weight, key, self, Noise(self.density, self.mean_span, self.start))


class Infill(Objective):
    """Text infilling for encoder-decoders (BART, arXiv 1910.13461): one mask for each span; the target is the text."""

    kind: Literal["infill"] = "infill"
    rate: Number = Field(default=0.3, gt=0, lt=1)
    """Share of tokens that is masked."""
    mean_span: Number = Field(default=3.0, gt=0, le=32)
    """Mean of the Poisson distribution of span lengths; a span of length 0 inserts a mask."""
    permute: bool = True
    """Shuffle the sentences (parts that end with a full stop) of the source."""
    start: Start = "end"
    """First token of the decoder's input; where the tokenizer has no padding token, `pad` means the end token."""

    def components(self, key: str = "data.objective", weight: float = 1.0) -> Iterator[Component]:
        noise = Noise(self.rate, self.mean_span, self.start, infill=True, permute=self.permute)
        yield Component(weight, key, self, noise)


class Denoiser(Config):
    """One of UL2's denoisers: span corruption behind a mode token."""

    mode: Literal["R", "S", "X"]
    """Regular, sequential or extreme: which mode token the source begins with."""
    density: Number = Field(gt=0, lt=1)
    """Share of tokens that is taken out."""
    mean_span: Number | None = Field(default=None, ge=1)
    """Mean length of a span in tokens; without it the end of the text is taken out as one span."""
    weight: Number = Field(default=1.0, gt=0)
    """Share of the rows, relative to the other denoisers."""


def _denoisers() -> list[Denoiser]:
    regular = [Denoiser(mode="R", density=0.15, mean_span=span) for span in (3, 8)]
    extreme = [(0.5, 3), (0.5, 8), (0.15, 64), (0.5, 64)]
    return [
        *regular,
        *(Denoiser(mode="X", density=density, mean_span=span) for density, span in extreme),
        Denoiser(mode="S", density=0.25),
    ]


class UL2(Objective):
    """Mixture of denoisers for encoder-decoders (Tay et al. 2022, arXiv 2205.05131, table 1)."""

    kind: Literal["ul2"] = "ul2"
    denoisers: list[Denoiser] = Field(default_factory=_denoisers, min_length=1)
    """The denoisers; by default the seven of the paper."""
    start: Start = "pad"
    """First token of the decoder's input; where the tokenizer has no padding token, `pad` means the end token."""

    def components(self, key: str = "data.objective", weight: float = 1.0) -> Iterator[Component]:
        """One for each denoiser."""
        total = sum(each.weight for each in self.denoisers)
        for number, each in enumerate(self.denoisers):
            mean = math.inf if each.mean_span is None else each.mean_span
            noise = Noise(each.density, mean, self.start, each.mode)
            yield Component(weight * each.weight / total, f"{key}.denoisers.{number}", self, noise)


OPEN = open_to("objective", Objective)


def _mixable(objective: Objective) -> Objective:
    if type(objective).build is not Objective.build:
        raise ValueError(
            f"{type(objective).__name__} builds batches of its own, so its rows cannot be mixed with others"
        )
    return objective


class MixturePart(Config):
    """One objective of a mixture."""

    weight: Number = Field(default=1.0, gt=0)
    """Share of the rows, relative to the other parts."""
    objective: Annotated[
        Causal | Prefix | Masked | Span | Infill | UL2, Field(discriminator="kind"), *OPEN, AfterValidator(_mixable)
    ]
    """Objective of its rows; not fill-in-the-middle, which acts on whole documents before rows are cut."""


class Mixture(Objective):
    """Several objectives in one run, chosen row by row; all for the same family of models."""

    kind: Literal["mixture"] = "mixture"
    parts: list[MixturePart] = Field(min_length=1)
    """Objectives and their weights."""

    def components(self, key: str = "data.objective", weight: float = 1.0) -> Iterator[Component]:
        """Those of all parts."""
        total = sum(each.weight for each in self.parts)
        for number, each in enumerate(self.parts):
            yield from each.objective.components(f"{key}.parts.{number}.objective", weight * each.weight / total)


class _Labelled(Objective):
    """Base of the objectives of labelled sets."""

    def build(self, context: Any) -> Any:
        """Raises UsageError where the data has no labels, or labels for another objective."""
        return named("data.labelled.labelled:build_labelled")(context, self)


class Labels(_Labelled):
    """Learn the labels of a labelled set (`text.labels`), for models whose head gives such labels.

    Rows are filled with whole documents; one that is longer than a row is cut at its end.
    """

    predicts_labels: ClassVar[bool] = True
    kind: Literal["labels"] = "labels"
    token: Literal["first", "last"] = "first"
    """Which token of a text carries its label: the first (encoders), or the last, which alone has seen all (decoders).

    Tags and answer spans have labels at their own tokens.
    """
    balance: bool = False
    """Texts of rarer labels come as often as those of the commonest, in each pass."""
    mixup: Number = Field(default=0, ge=0, le=1)
    """Texts that share a row are mixed, vectors and losses, by shares of Beta(mixup, mixup) (Zhang et al. 2018, arXiv
    1710.09412); 0: none."""


class Answer(_Labelled):
    """Causal on prompts and answers (`text.labels` of the kind `answer`): only answers are predicted."""

    kind: Literal["answer"] = "answer"


class Seq2Seq(_Labelled):
    """Prompts and answers for encoder-decoders: the encoder reads the prompt, the decoder writes the answer."""

    kind: Literal["seq2seq"] = "seq2seq"
    start: Start = "pad"
    """First token of the decoder's input; where the tokenizer has no padding token, `pad` means the end token."""

    @property
    def decoder_start(self) -> Start:
        return self.start


ObjectiveConfig = Annotated[
    Causal
    | Prefix
    | FillInTheMiddle
    | Masked
    | Replaced
    | Span
    | Infill
    | UL2
    | Mixture
    | Labels
    | Answer
    | Seq2Seq
    | DPO
    | IPO
    | KTO
    | ORPO
    | Reward,
    Field(discriminator="kind"),
    *OPEN,
]
