"""Batch builders of labelled sets, after a check that the labels fit the objective."""

from collections.abc import Sequence

import numpy as np

from hornbook.data.batch_builder import BatchBuilder, BuildContext
from hornbook.data.config.objectives import Answer, Labels, Seq2Seq
from hornbook.data.corpus import Corpus, Stream
from hornbook.data.labelled.answer_pairs import AnswerPairs, answer_plan
from hornbook.data.labelled.plan import row_plan
from hornbook.data.labelled.rows import LabelledRows
from hornbook.data.order.permutation import key_of
from hornbook.data.packing.plan import Plan
from hornbook.data.vocabulary import load_vocabulary
from hornbook.errors import UsageError
from hornbook.text.config.labels import ClassLabels, TagLabels

_BLOCK = 1 << 20


def build_labelled_rows(context: BuildContext, objective: Labels | Answer) -> BatchBuilder:
    """Rows of labelled texts. Raises UsageError where the data has no labels, or labels for another objective."""
    _check(context, objective)
    corpus, streams, sequence = context.corpus, context.streams, context.sequence
    balance = isinstance(objective, Labels) and objective.balance and not context.evaluation
    plans = [
        row_plan(stream, sequence, key, balance=balance) for stream, key in zip(streams, _keys(context), strict=True)
    ]
    _check_documents(streams, plans)
    between = load_vocabulary(corpus).tokenizer.ends_between
    return LabelledRows(corpus, streams, plans, objective, sequence=sequence, ends_between=between)


def build_answer_pairs(context: BuildContext, objective: Seq2Seq) -> BatchBuilder:
    """Pairs of prompt and answer. Raises UsageError as `build_labelled_rows`."""
    _check(context, objective)
    corpus, streams, sequence = context.corpus, context.streams, context.sequence
    vocabulary = load_vocabulary(corpus)
    around = 1 + (vocabulary.begin_id is not None)
    plans = [answer_plan(stream, sequence, around, key) for stream, key in zip(streams, _keys(context), strict=True)]
    _check_documents(streams, plans)
    start = vocabulary.pad_id if objective.start == "pad" else vocabulary.end_id
    return AnswerPairs(corpus, streams, plans, vocabulary, sequence=sequence, start=start)


def _keys(context: BuildContext) -> list[np.uint64 | None]:
    """Keys that the order of each stream's documents is drawn from; None in evaluation: the order of the stream."""
    names = [stream.source for stream in context.streams]
    return [None if context.evaluation else np.uint64(key_of("labels", context.seed, name)) for name in names]


def _check_documents(streams: Sequence[Stream], plans: Sequence[Plan]) -> None:
    for stream, plan in zip(streams, plans, strict=True):
        if plan.rows == 0:
            raise UsageError(f"data.weights: source {stream.source} has no labelled documents: give it weight 0")


def _check(context: BuildContext, objective: Labels | Answer | Seq2Seq) -> None:
    root, labels = context.corpus.root, context.corpus.labels
    key = f'data.objective "{objective.kind}"'
    if labels is None:
        raise UsageError(f"{key} needs labels, and {root} has none: prepare it with a section [text.labels]")
    if isinstance(objective, Labels) == (labels.kind == "answer"):
        fitting = '"answer" (decoders) or "seq2seq" (encoder-decoders)' if labels.kind == "answer" else '"labels"'
        raise UsageError(f"{key} does not fit the labels of {root}, whose kind is {labels.kind}: take {fitting}")
    if (
        isinstance(objective, Labels)
        and objective.balance
        and not (isinstance(labels, ClassLabels) and not labels.multiple)
    ):
        raise UsageError(f"data.objective.balance needs one label for each text, not those of {root} ({labels.kind})")
    if context.config.packing != "concat" and not context.evaluation:
        text = "packs plain text, and labelled texts are packed whole by themselves"
        raise UsageError(f'data.packing: "{context.config.packing}" {text}: leave it at "concat"')


def only_label(corpus: Corpus) -> str | None:
    """The label of all training data, where a label is one of several; None if labels differ. Stops at the second."""
    kind = corpus.labels
    if not isinstance(kind, ClassLabels | TagLabels) or (isinstance(kind, ClassLabels) and kind.multiple):
        return None
    seen: set[int] = set()
    for shard in (shard for stream in corpus.train.values() for shard in stream.shards):
        labels = shard.labels
        assert labels is not None
        for first in range(0, len(labels), _BLOCK):
            part = labels[first : first + _BLOCK, 0]
            seen |= set(np.unique(part[~np.isnan(part)]).astype(int).tolist())
            if len(seen) > 1:
                return None
    return kind.labels[seen.pop()] if seen else None
