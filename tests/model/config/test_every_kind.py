"""Every kind of part counts itself: one that is added without its counts fails here."""

from typing import Any, get_args

import pytest

from hornbook.model.build_model import build_model
from hornbook.model.config.flops import operations_per_token
from hornbook.model.config.model_config import ModelConfig
from hornbook.model.config.parameter_count import count_parameters
from tests.model.config.test_saved_bytes import compare

SECTIONS = ("attention", "mlp", "norm", "position", "head", "mtp")
VOCAB = 96
MORE: dict[str, dict[str, Any]] = {
    "latent": {"query_rank": 24, "kv_rank": 16, "nope_dim": 8, "rope_dim": 4, "value_dim": 12},
    "classification": {"labels": ["a", "b", "c"]},
    "token_classification": {"labels": ["a", "b", "c"]},
    "experts": {"count": 4, "active": 2, "hidden": 40},
}
"""Settings of a kind, whose defaults are for larger models."""
ENCODERS = {"batch", "masked", "replaced"}
"""Kinds that see all tokens."""


def _kinds(annotation: Any) -> set[str]:
    """Of all parts in the annotation of a setting, however deep its unions are."""
    if isinstance(annotation, type):
        field = getattr(annotation, "model_fields", {}).get("kind")
        return {field.default} if field is not None and isinstance(field.default, str) else set()
    return {kind for each in get_args(annotation) for kind in _kinds(each)}


ALL = [(section, kind) for section in SECTIONS for kind in sorted(_kinds(ModelConfig.model_fields[section].annotation))]


def part_of(section: str, kind: str) -> dict[str, Any]:
    found: dict[str, Any] = {section: {"kind": kind, **MORE.get(kind, {})}}
    return ({"head": {"kind": "masked"}} | found | {"kind": "encoder"}) if kind in ENCODERS else found


def model_of(section: str, kind: str) -> ModelConfig:
    return ModelConfig.model_validate({"layers": 2, "width": 32, "heads": 4} | part_of(section, kind))


def test_all_sections_have_kinds() -> None:
    assert {"full", "latent", "delta", "glu", "mlp", "experts", "rms", "layer", "rope", "lm", "sequential"} <= {
        kind for _, kind in ALL
    }


@pytest.mark.parametrize(("section", "kind"), ALL)
def test_every_kind_counts_its_parameters_and_operations(section: str, kind: str) -> None:
    model = model_of(section, kind)
    assert count_parameters(model, VOCAB) == sum(
        each.numel() for each in build_model(model, VOCAB, "meta").parameters()
    )
    assert all(each.total > 0 for each in operations_per_token(model, VOCAB, 48).values())


@pytest.mark.parametrize(("section", "kind"), ALL)
def test_every_kind_says_what_it_keeps(section: str, kind: str) -> None:
    compare(part_of(section, kind), "none", "fp32", (2, 48))
