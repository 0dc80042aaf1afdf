"""What makes batches from a labelled set, once it is sure that the set has what the objective asks for."""

import numpy as np

from hornbook.data.config import Labels, OnLabels, Seq2Seq
from hornbook.data.labelled.answer_pairs import AnswerPairs, answer_plan
from hornbook.data.labelled.plan import row_plan
from hornbook.data.labelled.rows import LabelledRows
from hornbook.data.batch_builder import Maker, Setting
from hornbook.data.order.permutation import key_of
from hornbook.data.vocabulary import load_vocabulary
from hornbook.errors import UsageError
from hornbook.text.config.labels import ClassLabels


def build_labelled(setting: Setting, objective: OnLabels) -> Maker:
    """What makes batches. Raises UsageError where the data has no labels, or labels for another objective."""
    _check(setting, objective)
    maker = _pairs(setting, objective) if isinstance(objective, Seq2Seq) else _rows(setting, objective)
    for stream, plan in zip(setting.streams, maker.plans, strict=True):
        if plan.rows == 0:
            raise UsageError(f"data.weights: source {stream.source} has no labelled documents: give it weight 0")
    return maker


def _keys(setting: Setting) -> list[np.uint64 | None]:
    """What the order of documents is drawn from; in evaluation it is that of the stream."""
    names = [stream.source for stream in setting.streams]
    return [None if setting.evaluation else np.uint64(key_of("labels", setting.seed, name)) for name in names]


def _rows(setting: Setting, objective: OnLabels) -> Maker:
    corpus, streams, sequence = setting.corpus, setting.streams, setting.sequence
    balance = isinstance(objective, Labels) and objective.balance and not setting.evaluation
    plans = [
        row_plan(stream, sequence, key, balance=balance) for stream, key in zip(streams, _keys(setting), strict=True)
    ]
    between = load_vocabulary(corpus).tokenizer.ends_between
    assert not isinstance(objective, Seq2Seq)
    return LabelledRows(corpus, streams, plans, objective, sequence=sequence, ends_between=between)


def _pairs(setting: Setting, objective: Seq2Seq) -> Maker:
    corpus, streams, sequence = setting.corpus, setting.streams, setting.sequence
    vocabulary = load_vocabulary(corpus)
    around = 1 + (vocabulary.begin_id is not None)
    plans = [answer_plan(stream, sequence, around, key) for stream, key in zip(streams, _keys(setting), strict=True)]
    start = vocabulary.pad_id if objective.start == "pad" else vocabulary.end_id
    return AnswerPairs(corpus, streams, plans, vocabulary, sequence=sequence, start=start)


def _check(setting: Setting, objective: OnLabels) -> None:
    root, labels = setting.corpus.root, setting.corpus.labels
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
    if setting.config.packing != "concat" and not setting.evaluation:
        text = "packs plain text, and labelled texts are packed whole by themselves"
        raise UsageError(f'data.packing: "{setting.config.packing}" {text}: leave it at "concat"')
