"""Every parameter that a matrix optimizer takes is one linear map: nothing joined is orthogonalized as one."""

import re
from typing import Any

import pytest

from hornbook.model.build_model import build_model, parameter_roles
from hornbook.model.config.model_config import ModelConfig
from hornbook.model.config.surgery_config import BottleneckConfig, Dora, Lora
from hornbook.model.surgery.operate import operate
from hornbook.optim.build_optimizer import assign_rules
from hornbook.optim.config.optim import Muon
from tests.parallel.families import MODELS, VOCAB, model_config
from tests.parallel.test_precision import OTHERS

MAPS = r"query|key|value|out|gate|up|down|rate|decay|router|dense|query_down|query_up|kv_down|kv_up"
"""Linear maps by the last part of their names. Latent attention's `kv_down` and `kv_up` are what DeepSeek names so:
the first also makes the key of positions, the second keys and values of all heads. Muon takes each whole."""


def roles_and_shapes(config: ModelConfig, steps: Any = ()) -> tuple[dict[str, str], dict[str, tuple[int, ...]]]:
    model = build_model(config, VOCAB, "meta")
    operate(model, steps)
    shapes = {name: tuple(each.shape) for name, each in model.named_parameters() if each.requires_grad}
    return {name: role for name, role in parameter_roles(model).items() if name in shapes}, shapes


def model_of(family: str) -> ModelConfig:
    if family in MODELS:
        return model_config(family)
    return ModelConfig.model_validate({"layers": 2, "width": 32, "heads": 2, **OTHERS[family]})


@pytest.mark.parametrize("family", [*MODELS, *OTHERS])
def test_muon_takes_single_maps_and_stacked_experts(family: str) -> None:
    roles, shapes = roles_and_shapes(model_of(family))
    config = Muon()
    taken = {name for name, rule in assign_rules(roles, config, shapes).items() if rule is config}
    assert taken
    for name in taken:
        stem = name.removesuffix(".weight").rpartition(".")[2]
        assert re.fullmatch(MAPS, stem), f"{name} is a matrix: is it one linear map?"
        experts = len(shapes[name]) == 3
        assert experts == (not name.endswith(".weight")), name
    rest = {name: roles[name] for name in shapes if name not in taken}
    assert "matrix" not in rest.values()
    assert all("convolution" not in name for name in taken)


@pytest.mark.parametrize("step", [Lora(), Dora(), BottleneckConfig(width=8)])
def test_of_adapters_it_takes_each_factor(step: Any) -> None:
    roles, shapes = roles_and_shapes(model_config("prefix"), (step,))
    config = Muon()
    taken = {name for name, rule in assign_rules(roles, config, shapes).items() if rule is config}
    assert taken
    assert all(len(shapes[name]) == 2 and min(shapes[name]) > 1 for name in taken)
