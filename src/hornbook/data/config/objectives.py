"""Configuration of how token shards become batches: their order, and what a model is asked to predict."""

from typing import Annotated, Literal

from pydantic import Field

from hornbook.settings.fields import Config, Count, Number

Start = Literal["pad", "end"]


class Causal(Config):
    """Predict each token from those before it."""

    kind: Literal["causal"] = "causal"


class Prefix(Config):
    """Prefix LM (arXiv 1910.10683, section 3.2.1): a leading part is seen in both directions, the rest is predicted."""

    kind: Literal["prefix"] = "prefix"


class FillInTheMiddle(Config):
    """Causal on documents of which some have their middle moved to the end (Bavarian et al. 2022, arXiv 2207.14255).

    The cuts are made once per seed, at characters, and kept beside the shards; evaluation is on text as it is.
    """

    kind: Literal["fim"] = "fim"
    rate: Number = Field(default=0.5, gt=0, le=1)
    """Share of documents that are rearranged."""
    suffix_first: Number = Field(default=0.5, ge=0, le=1)
    """Of those, the share in the order suffix, prefix, middle; the others are prefix, suffix, middle."""


class Masked(Config):
    """Masked LM (BERT, arXiv 1810.04805): predict chosen tokens, of which 80 % are masked, 10 % random, 10 % kept."""

    kind: Literal["masked"] = "masked"
    rate: Number = Field(default=0.15, gt=0, lt=1)
    """Share of a row's ordinary tokens that is chosen, rounded to whole tokens; ModernBERT trains with 0.3."""
    eval_rate: Number | None = Field(default=None, gt=0, lt=1)
    """The same for evaluation; by default `rate`. Losses at different rates cannot be compared."""
    whole_word: bool = False
    """Choose all tokens of a word or none."""
    dynamic: bool = True
    """Choose anew each time a row is seen (RoBERTa, arXiv 1907.11692); else as the first time."""


class Span(Config):
    """Span corruption for encoder-decoders (T5, arXiv 1910.10683): sentinels for spans, which the target spells out."""

    kind: Literal["span"] = "span"
    density: Number = Field(default=0.15, gt=0, lt=1)
    """Share of tokens that is taken out."""
    mean_span: Number = Field(default=3.0, ge=1)
    """Mean length of what is taken out at one place, in tokens."""
    start: Start = "pad"
    """First token of the decoder's input; where the tokenizer has no padding token, `pad` means the end token."""


class Infill(Config):
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


class UL2(Config):
    """Mixture of denoisers for encoder-decoders (Tay et al. 2022, arXiv 2205.05131, table 1)."""

    kind: Literal["ul2"] = "ul2"
    denoisers: list[Denoiser] = Field(default_factory=_denoisers, min_length=1)
    """The denoisers; by default the seven of the paper."""
    start: Start = "pad"
    """First token of the decoder's input; where the tokenizer has no padding token, `pad` means the end token."""


class MixturePart(Config):
    """One objective of a mixture."""

    weight: Number = Field(default=1.0, gt=0)
    """Share of the rows, relative to the other parts."""
    objective: Annotated[Causal | Prefix | Masked | Span | Infill | UL2, Field(discriminator="kind")]
    """What its rows ask; fill-in-the-middle acts on whole documents, before there are rows, and has a rate instead."""


class Mixture(Config):
    """Several objectives in one run, chosen row by row; all for the same family of models."""

    kind: Literal["mixture"] = "mixture"
    parts: list[MixturePart] = Field(min_length=1)
    """Objectives and their weights."""


class Labels(Config):
    """Learn the labels of a labelled set (`text.labels`), for models whose head gives such labels.

    Rows are filled with whole documents; one that is longer than a row is cut at its end.
    """

    kind: Literal["labels"] = "labels"
    token: Literal["first", "last"] = "first"
    """Which token of a text carries its label: the first (encoders), or the last, which alone has seen all (decoders).

    Tags and answers that are places stand at their own tokens.
    """
    balance: bool = False
    """Texts of rarer labels come as often as those of the commonest, in each pass."""


class Answer(Config):
    """Causal on prompts and answers (`text.labels` of the kind `answer`): only what is answered counts."""

    kind: Literal["answer"] = "answer"


class Seq2Seq(Config):
    """Prompts and answers for encoder-decoders: the encoder reads the prompt, the decoder writes the answer."""

    kind: Literal["seq2seq"] = "seq2seq"
    start: Start = "pad"
    """First token of the decoder's input; where the tokenizer has no padding token, `pad` means the end token."""


OnLabels = Labels | Answer | Seq2Seq
"""Objectives that need a labelled set."""
UnlabelledConfig = Causal | Prefix | FillInTheMiddle | Masked | Span | Infill | UL2 | Mixture
ObjectiveConfig = Annotated[UnlabelledConfig | OnLabels, Field(discriminator="kind")]


class StageConfig(Config):
    """From a position in the run on, other weights."""

    from_tokens: Count = Field(ge=0)
    """Position of training, in tokens, at which this stage begins."""
    weights: dict[str, float] = Field(default_factory=dict)
    """Share of tokens per source."""


class DataConfig(Config):
    """Which tokens are seen, and in which order."""

    path: str | None = None
    """Folder written by `hornbook tokenize`; `hornbook train --data` sets it."""
    weights: dict[str, float] = Field(default_factory=dict)
    """Share of tokens per source, normalised; by default each source by its size."""
    temperature: Number = Field(default=1.0, ge=1)
    """Where no weights are given they are size ** (1 / temperature): 1 is by size, more lifts small sources."""
    max_epochs: Number | None = Field(default=None, gt=0)
    """A source that was read so often is read no more; the others take its place by their weights."""
    stages: list[StageConfig] = Field(default_factory=list)
    """Changes of the weights during the run."""
    order: Literal["shuffled", "sequential", "replacement"] = "shuffled"
    """A new permutation each epoch, the order of the shards, or independent draws."""
    packing: Literal["concat", "best_fit"] = "concat"
    """Cut the stream of documents into rows, or fit whole documents into rows."""
    document_mask: bool = True
    """Attention stays inside a document and positions restart with each."""
    objective: ObjectiveConfig = Causal()
    """What the model is asked to predict."""
