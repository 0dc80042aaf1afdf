"""Parameters by name, role and shape, by arithmetic: those of the built model."""

from typing import Any

import pytest

from hornbook.model.build_model import build_model, parameter_roles
from hornbook.model.config.model_config import ModelConfig
from hornbook.model.config.parameter_count import parameters_of
from hornbook.optim.build_optimizer import build_optimizer
from hornbook.optim.config.optim import AnyOptimizer
from hornbook.plan.update import state_bytes_per_value
from hornbook.settings.fields import Config
from tests.model.config.test_every_kind import ALL, model_of
from tests.model.config.test_saved_bytes import FAMILIES, MIXTURES, OTHER_MIXTURES, OTHER_PAIRS, OTHERS, PAIRS, SIZES

VOCAB = 96
PARTS: dict[str, dict[str, Any]] = FAMILIES | OTHERS | PAIRS | OTHER_PAIRS | MIXTURES | OTHER_MIXTURES
PARTS |= {f"{section} {kind}": model_of(section, kind).model_dump() for section, kind in ALL}


@pytest.mark.parametrize("name", PARTS)
def test_they_are_those_of_the_built_model(name: str) -> None:
    config = ModelConfig.model_validate(SIZES | PARTS[name])
    model = build_model(config, VOCAB, "meta")
    roles = parameter_roles(model)
    built = {
        each: (roles[each], tuple(parameter.shape))
        for each, parameter in model.named_parameters()
        if parameter.requires_grad or each == "head.bias"  # fixed ones of encoder-decoders count
    }
    assert {each.name: (each.role, each.shape) for each in parameters_of(config, VOCAB)} == built


class _Optimizer(Config):
    optim: AnyOptimizer


OPTIMIZERS: list[dict[str, Any]] = [
    *({"kind": kind} for kind in ("adamw", "adamw8bit", "sgd", "adafactor", "lion", "muon", "soap", "lamb")),
    {"kind": "adamw", "groups": [{"match": "*mlp*", "rule": {"kind": "lion"}}]},
    {"kind": "muon", "groups": [{"match": "*.attention.*", "rule": {"kind": "sgd"}}]},
]


@pytest.mark.parametrize("settings", OPTIMIZERS, ids=str)
@pytest.mark.parametrize("family", ["llama", "bert", "t5", "deepseek"])
def test_state_is_what_the_optimizer_allocates(family: str, settings: dict[str, Any]) -> None:
    config = ModelConfig.model_validate(SIZES | {"width": 96} | (FAMILIES | PAIRS | MIXTURES)[family])
    optim = _Optimizer.model_validate({"optim": settings}).optim
    model = build_model(config, VOCAB, "meta")
    trained = {name: each for name, each in model.named_parameters() if each.requires_grad}
    held = [tensor for _, _, tensor in build_optimizer(trained, parameter_roles(model), optim).state()]
    held = [each for each in held if all(each is not parameter for parameter in trained.values())]
    size = sum(each.numel() for each in trained.values())
    found = state_bytes_per_value(config, VOCAB, optim, 4)
    assert round(found * size) == sum(each.numel() * each.element_size() for each in held)
