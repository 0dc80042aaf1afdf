"""The labels of heads, as config.json has them: names, and what kind of problem a text's label is."""

from hornbook.model.config.head_config import (
    ClassificationHead,
    LabelHeadConfig,
    RegressionHead,
    TokenClassificationHead,
)
from hornbook.model.config.model_config import ModelConfig
from hornbook.model.hf.tables.vocabulary_names import Codec, Json

_NAMES = ("id2label", "label2id", "num_labels", "problem_type")
_SINGLE, _MULTIPLE, _REGRESSION = "single_label_classification", "multi_label_classification", "regression"


def _read_names(keys: Json) -> list[str]:
    """Names of the labels in order; transformers writes none where there are two without names of their own."""
    names = keys.get("id2label")
    if names is None:
        return [f"LABEL_{i}" for i in range(keys.get("num_labels", 2))]
    found = {int(number): name for number, name in names.items()}
    return [found[i] for i in range(len(found))]


def _write_names(config: ModelConfig) -> Json:
    head = config.head
    assert isinstance(head, LabelHeadConfig)
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
    if isinstance(config.head, RegressionHead):
        return {**_write_names(config), "problem_type": _REGRESSION}
    multiple = isinstance(config.head, ClassificationHead) and config.head.multiple
    return {**_write_names(config), "problem_type": _MULTIPLE if multiple else _SINGLE}


def _read_tokens(keys: Json, tree: Json) -> None:
    tree["head"]["labels"] = _read_names(keys)


def _read_span(keys: Json, _: Json) -> None:
    if (count := len(_read_names(keys))) != 2:
        raise ValueError(f"a span has two scores for each token, not {count}")


CODECS = {
    "label_of_text": Codec(_NAMES, _read_text, _write_text),
    "labels_of_tokens": Codec(_NAMES, _read_tokens, _write_names),
    "span": Codec(_NAMES, _read_span, _write_names),
}
