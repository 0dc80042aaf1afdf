"""Classes of transformers with a head for labels: a stack's table, with other rows and keys for the head.

Sources: their files in transformers 4 and 5, and `modeling_layers.py` there for those that share their heads. Of an
encoder a text's label is read from the first token, of a decoder from the last one that is not the padding token, as
here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from hornbook.model.config.head import (
    ClassificationHead,
    LabelHeadConfig,
    RegressionHead,
    TokenClassificationHead,
)
from hornbook.model.config.model import ModelConfig
from hornbook.model.hf.tables.encoders import BERT, MODERNBERT, ROBERTA
from hornbook.model.hf.tables.gpt import GPT2
from hornbook.model.hf.tables.llama import LLAMA, QWEN2, QWEN3
from hornbook.model.hf.tables.vocabulary import GELU_FIRST, Architecture, Codec, Json, Key, Row, pairs

# ---- Names of labels

_NAMES = ("id2label", "label2id", "num_labels", "problem_type")
_SINGLE, _MULTIPLE, _REGRESSION = "single_label_classification", "multi_label_classification", "regression"


def _read_names(keys: Json) -> list[str]:
    """Names of the labels in order; transformers writes none where there are two without names of their own."""
    names = keys.get("id2label")
    if names is None:
        return [f"LABEL_{i}" for i in range(keys.get("num_labels", 2))]
    found = {int(number): name for number, name in names.items()}
    return [found[i] for i in range(len(found))]


def _write_names(head: LabelHeadConfig) -> Json:
    named = isinstance(head, ClassificationHead | TokenClassificationHead)
    names = head.labels if named else [f"LABEL_{i}" for i in range(head.outputs)]
    return {
        "id2label": {str(number): name for number, name in enumerate(names)},
        "label2id": {name: number for number, name in enumerate(names)},
        "classifier_dropout": head.dropout,
    }


def _read_text(keys: Json, tree: Json) -> None:
    names, problem = _read_names(keys), keys.get("problem_type")
    problem = problem or (_REGRESSION if len(names) == 1 else _SINGLE)
    if problem not in (_SINGLE, _MULTIPLE, _REGRESSION) or (problem == _SINGLE and len(names) == 1):
        raise ValueError(f"{problem!r} of {len(names)} labels is no problem type of transformers")
    if problem == _REGRESSION:
        tree["head"] |= {"kind": "regression", "outputs": len(names)}
    else:
        tree["head"] |= {"kind": "classification", "labels": names, "multiple": problem == _MULTIPLE}


def _write_text(config: ModelConfig) -> Json:
    head = config.head
    assert isinstance(head, LabelHeadConfig)
    if isinstance(head, RegressionHead):
        return {**_write_names(head), "problem_type": _REGRESSION}
    multiple = isinstance(head, ClassificationHead) and head.multiple
    return {**_write_names(head), "problem_type": _MULTIPLE if multiple else _SINGLE}


def _read_tokens(keys: Json, tree: Json) -> None:
    tree["head"]["labels"] = _read_names(keys)


def _read_span(keys: Json, _: Json) -> None:
    if (count := len(_read_names(keys))) != 2:
        raise ValueError(f"a span has two scores for each token, not {count}")


def _write_labels(config: ModelConfig) -> Json:
    assert isinstance(config.head, LabelHeadConfig)
    return _write_names(config.head)


_TEXT = Codec(_NAMES, _read_text, _write_text)
_TOKENS = Codec(_NAMES, _read_tokens, _write_labels)
_SPAN = Codec(_NAMES, _read_span, _write_labels)

# ---- Tables


def _labelled(
    base: Architecture,
    task: str,
    codec: Codec,
    rows: Sequence[Row],
    requires: Mapping[str, Any],
    *,
    keys: Sequence[Key] = (),
    constant: Mapping[str, Any] | None = None,
    prefix: str = "",
    unused: tuple[str, ...] = (),
) -> Architecture:
    """The table of `base` with another head. prefix: of the stack's tensors, if it is not that of `base`."""
    ours = {each.theirs: tuple(path for path in each.ours if not path.startswith("head.")) for each in base.keys}
    own = [row for row in base.rows if not row.ours.startswith("head.")]
    if prefix:
        own = [replace(row, theirs=prefix + row.theirs.removeprefix(base.prefix)) for row in own]
    kept = [replace(each, ours=ours[each.theirs]) for each in base.keys if ours[each.theirs]]
    family = base.name.split("For")[0].removesuffix("LMHeadModel")
    return replace(
        base,
        name=f"{family}For{task}",
        prefix=prefix or base.prefix,
        keys=(*kept, *keys),
        requires={k: v for k, v in base.requires.items() if not k.startswith("head.")} | dict(requires),
        rows=(*own, *rows),
        codecs=(*base.codecs, codec),
        constant={**base.constant, **(constant or {})},
        inert=(*base.inert, *(name for name, paths in ours.items() if not paths)),
        copies={},
        unused=unused,
    )


_NONE = {"head.transform.kind": "none"}
_POOLER = {"head.transform.kind": "dense", "head.transform.activation": "tanh", "head.transform.norm": False}
_BIASED = {"head.bias": True}
_TAGS = {"head.kind": "token_classification", **_BIASED}
_PLACES = {"head.kind": "span", **_BIASED}
_CLASSIFIER, _SCORE, _OUTPUTS = pairs("head", "classifier"), pairs("head", "score"), pairs("head", "qa_outputs")

_POOLED = {**_POOLER, "head.transform.bias": True, **_BIASED}
_BERT_HEADS = (
    _labelled(
        BERT,
        "SequenceClassification",
        _TEXT,
        (*pairs("head.before.dense", "bert.pooler.dense"), *_CLASSIFIER),
        _POOLED,
    ),
    _labelled(BERT, "TokenClassification", _TOKENS, _CLASSIFIER, {**_TAGS, **_NONE}, unused=("bert.pooler.*",)),
    _labelled(BERT, "QuestionAnswering", _SPAN, _OUTPUTS, {**_PLACES, **_NONE}, unused=("bert.pooler.*",)),
)
_ROBERTA_HEADS = (
    _labelled(
        ROBERTA,
        "SequenceClassification",
        _TEXT,
        (*pairs("head.before.dense", "classifier.dense"), *pairs("head", "classifier.out_proj")),
        _POOLED,
        unused=("roberta.pooler.*",),
    ),
    _labelled(ROBERTA, "TokenClassification", _TOKENS, _CLASSIFIER, {**_TAGS, **_NONE}, unused=("roberta.pooler.*",)),
    _labelled(ROBERTA, "QuestionAnswering", _SPAN, _OUTPUTS, {**_PLACES, **_NONE}, unused=("roberta.pooler.*",)),
)

_MODERN = {
    "rows": (*pairs("head.before.dense", "head.dense"), *pairs("head.before.norm", "head.norm"), *_CLASSIFIER),
    "keys": (
        Key("classifier_activation", ("head.transform.activation",), "gelu", GELU_FIRST),
        Key("classifier_bias", ("head.transform.bias",), False),
    ),
    "constant": {"classifier_pooling": "cls"},
}
_NORMED = {"head.transform.kind": "dense", "head.transform.norm": True, **_BIASED}
_MODERNBERT_HEADS = (
    _labelled(MODERNBERT, "SequenceClassification", _TEXT, requires=_NORMED, **_MODERN),
    _labelled(MODERNBERT, "TokenClassification", _TOKENS, requires={**_TAGS, **_NORMED}, **_MODERN),
    _labelled(MODERNBERT, "QuestionAnswering", _SPAN, requires={**_PLACES, **_NORMED}, **_MODERN),
)

_PLAIN = {**_NONE, "head.bias": False}
_GPT2_HEADS = (
    _labelled(GPT2, "SequenceClassification", _TEXT, _SCORE, _PLAIN),
    _labelled(GPT2, "TokenClassification", _TOKENS, _CLASSIFIER, {**_TAGS, **_NONE}),
    _labelled(GPT2, "QuestionAnswering", _SPAN, _OUTPUTS, {**_PLACES, **_NONE}),
)
_LLAMA_HEADS = tuple(
    table
    for base in (LLAMA, QWEN2, QWEN3)
    for table in (
        _labelled(base, "SequenceClassification", _TEXT, _SCORE, _PLAIN),
        _labelled(base, "TokenClassification", _TOKENS, _SCORE, {**_TAGS, **_NONE}),
        _labelled(base, "QuestionAnswering", _SPAN, _OUTPUTS, {**_PLACES, **_NONE}, prefix="transformer."),
    )
)

LABELLED = (*_BERT_HEADS, *_ROBERTA_HEADS, *_MODERNBERT_HEADS, *_GPT2_HEADS, *_LLAMA_HEADS)
"""All of them."""
