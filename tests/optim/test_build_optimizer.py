"""Parameter groups and the AdamW update, against closed forms."""

import math

import pytest
import torch
from torch.nn import Parameter

from hornbook.errors import UsageError
from hornbook.model.build_model import build_model, parameter_roles
from hornbook.model.config.attention_config import FullAttentionConfig
from hornbook.model.config.head_config import LMHead
from hornbook.model.config.mlp_config import GLUConfig, PlainMLPConfig
from hornbook.model.config.model_config import ModelConfig
from hornbook.model.config.norm_config import LayerNormConfig
from hornbook.model.config.position_config import LearnedPositionsConfig
from hornbook.optim.build_optimizer import build_optimizer, decays, parameter_groups
from hornbook.optim.config.optim import AdamW
from hornbook.optim.config.rule import Factors

GPT2_LIKE = ModelConfig(
    layers=2,
    width=16,
    heads=2,
    attention=FullAttentionConfig(bias=True, out_bias=True, qk_norm="head"),
    mlp=PlainMLPConfig(),
    norm=LayerNormConfig(),
    position=LearnedPositionsConfig(length=8),
)
LLAMA_LIKE = ModelConfig(layers=2, width=16, heads=2, mlp=GLUConfig(), head=LMHead(tied=False))


def names_of(group: dict) -> set[str]:
    return {name for name, _ in group["params"]}


@pytest.mark.parametrize("config", [GPT2_LIKE, LLAMA_LIKE])
@pytest.mark.parametrize("decay_embeddings", [False, True])
def test_groups_cover_every_parameter_once_and_decay_by_role(config: ModelConfig, decay_embeddings: bool) -> None:
    model = build_model(config, 32)
    roles = parameter_roles(model)
    settings = AdamW(decay_embeddings=decay_embeddings, weight_decay=0.3)
    ((rule, (decayed, plain)),) = parameter_groups(dict(model.named_parameters()), roles, settings)
    assert rule is settings
    assert names_of(decayed) | names_of(plain) == {name for name, _ in model.named_parameters()}
    assert not names_of(decayed) & names_of(plain)
    assert (decayed["weight_decay"], plain["weight_decay"]) == (0.3, 0.0)
    for name in names_of(decayed):
        assert roles[name] in ("matrix", "head") or (roles[name] == "embedding" and decay_embeddings)
    assert all(not name.endswith("bias") and "norm" not in name.split(".")[-2] for name in names_of(decayed))
    assert ("embedding.weight" in names_of(decayed)) == decay_embeddings
    assert "blocks.0.attention.query.weight" in names_of(decayed)
    assert "positions.weight" not in names_of(decayed)


def test_a_tied_tensor_is_taken_once_under_its_first_name() -> None:
    shared, other = Parameter(torch.ones(3, 2)), Parameter(torch.ones(2))
    named = {"embedding.weight": shared, "norm.weight": other, "head.weight": shared}
    ((_, groups),) = parameter_groups(
        named, {"embedding.weight": "embedding", "norm.weight": "norm", "head.weight": "head"}, AdamW()
    )
    assert [name for group in groups for name, _ in group["params"]] == ["embedding.weight", "norm.weight"]


def test_a_parameter_without_role_is_refused() -> None:
    with pytest.raises(KeyError):
        parameter_groups({"a": Parameter(torch.ones(2))}, {}, AdamW())
    with pytest.raises(AssertionError, match="unknown parameter role"):
        decays("expert", AdamW())


def test_first_step_is_the_closed_form() -> None:
    """From zero moments: m_hat = g and v_hat = g^2, so p' = p (1 - lr wd) - lr g / (|g| + eps), whatever the betas."""
    torch.manual_seed(0)
    config = AdamW(lr=0.01, weight_decay=0.5, eps=1e-3)
    matrix, bias = Parameter(torch.randn(5, 7)), Parameter(torch.randn(7))
    start = {"w": matrix.detach().double(), "b": bias.detach().double()}
    optimizer = build_optimizer({"w": matrix, "b": bias}, {"w": "matrix", "b": "vector"}, config)
    optimizer.set_learning_rate(0.02)
    matrix.grad, bias.grad = torch.randn(5, 7), torch.randn(7)
    optimizer.step()
    for name, parameter, decay in (("w", matrix, 0.5), ("b", bias, 0.0)):
        assert parameter.grad is not None
        gradient = parameter.grad.double()
        expected = start[name] * (1 - 0.02 * decay) - 0.02 * gradient / (gradient.abs() + 1e-3)
        torch.testing.assert_close(parameter.detach().double(), expected, rtol=2e-6, atol=2e-8)


def test_factors_multiply_learning_rate_eps_and_decay_of_what_they_name() -> None:
    """First step in closed form, as above; a schedule's rate is multiplied too."""
    torch.manual_seed(2)
    config, factors = AdamW(lr=0.01, weight_decay=0.5, eps=1e-3), {"w": Factors(lr=0.25, eps=8.0, weight_decay=4.0)}
    named = {name: Parameter(torch.randn(5, 7)) for name in ("v", "w")}
    start = {name: parameter.detach().double() for name, parameter in named.items()}
    optimizer = build_optimizer(named, {"v": "matrix", "w": "matrix"}, config, factors)
    assert [group["lr"] for group in optimizer.updates[0][1].param_groups] == [0.01, 0.0025]
    optimizer.set_learning_rate(0.02)
    for parameter in named.values():
        parameter.grad = torch.randn(5, 7) * 1e-2
    optimizer.step()
    for name, lr, eps, decay in (("v", 0.02, 1e-3, 0.5), ("w", 0.005, 8e-3, 2.0)):
        gradient = named[name].grad
        assert gradient is not None
        update = gradient.double() / (gradient.double().abs() + eps)
        expected = start[name] * (1 - lr * decay) - lr * update
        torch.testing.assert_close(named[name].detach().double(), expected, rtol=2e-6, atol=2e-8)


def test_groups_with_factors_cover_every_parameter_once() -> None:
    model = build_model(LLAMA_LIKE, 32)
    roles = parameter_roles(model)
    factors = {name: Factors(lr=0.5) for name, role in roles.items() if role == "matrix"}
    ((_, groups),) = parameter_groups(dict(model.named_parameters()), roles, AdamW(), factors)
    names = [name for group in groups for name in names_of(group)]
    assert sorted(names) == sorted(name for name, _ in model.named_parameters())
    assert {tuple(sorted({roles[name] for name in names_of(group)})): group["lr_factor"] for group in groups} == {
        ("matrix",): 0.5,
        ("head",): 1.0,
        ("embedding", "norm"): 1.0,
    }


def reference_adamw(p: torch.Tensor, gradients: list[torch.Tensor], config: AdamW) -> torch.Tensor:
    """Algorithm 2 of arXiv 1711.05101, written out in float64."""
    m, v = torch.zeros_like(p), torch.zeros_like(p)
    for t, g in enumerate(gradients, 1):
        m = config.beta1 * m + (1 - config.beta1) * g
        v = config.beta2 * v + (1 - config.beta2) * g * g
        m_hat, v_hat = m / (1 - config.beta1**t), v / (1 - config.beta2**t)
        p = p - config.lr * config.weight_decay * p - config.lr * m_hat / (v_hat.sqrt() + config.eps)
    return p


def test_twenty_steps_equal_the_reference() -> None:
    torch.manual_seed(1)
    config = AdamW(lr=0.03, beta1=0.8, beta2=0.95, weight_decay=0.1)
    parameter = Parameter(torch.randn(11, 3))
    gradients = [torch.randn(11, 3) * math.exp(k % 5) for k in range(20)]
    expected = reference_adamw(parameter.detach().double(), [g.double() for g in gradients], config)
    optimizer = build_optimizer({"w": parameter}, {"w": "matrix"}, config)
    for gradient in gradients:
        parameter.grad = gradient
        optimizer.step()
    torch.testing.assert_close(parameter.detach().double(), expected, rtol=1e-5, atol=1e-6)


def test_moments_exist_before_the_first_step() -> None:
    parameter = Parameter(torch.randn(4, 3))
    optimizer = build_optimizer({"w": parameter}, {"w": "matrix"}, AdamW())
    state = optimizer.updates[0][1].state[parameter]
    assert set(state) == {"step", "exp_avg", "exp_avg_sq"}
    assert not any(bool(tensor.any()) for tensor in state.values())


def test_groups_by_name_have_their_own_rate_decay_and_rule() -> None:
    """The first group that matches counts; the rate of a rule is its own; without a group all is as before."""
    torch.manual_seed(3)
    named = {name: Parameter(torch.randn(3, 2)) for name in ("a.w", "b.w", "c.w", "c.bias")}
    roles = {"a.w": "matrix", "b.w": "matrix", "c.w": "matrix", "c.bias": "vector"}
    other = {"kind": "adamw", "lr": 0.04, "eps": 0.1, "weight_decay": 0.25}
    groups = [
        {"match": "b.*", "rule": other},
        {"match": "c.bias", "lr": 0.02, "weight_decay": 0.75},
        {"match": "*.bias"},
    ]
    config = AdamW.model_validate({"lr": 0.01, "weight_decay": 0.5, "eps": 1e-3, "groups": groups})
    optimizer = build_optimizer(named, roles, config)
    optimizer.set_learning_rate(0.005)  # half the peak
    start = {name: each.detach().double() for name, each in named.items()}
    for each in named.values():
        each.grad = torch.randn(3, 2)
    optimizer.step()
    settings = {
        "a.w": (0.005, 1e-3, 0.5),
        "b.w": (0.02, 0.1, 0.25),
        "c.w": (0.005, 1e-3, 0.5),
        "c.bias": (0.01, 1e-3, 0.75),
    }
    for name, (lr, eps, decay) in settings.items():
        gradient = named[name].grad
        assert gradient is not None
        update = gradient.double() / (gradient.double().abs() + eps)
        expected = start[name] * (1 - lr * decay) - lr * update
        torch.testing.assert_close(named[name].detach().double(), expected, rtol=2e-6, atol=2e-8)


class Matrices(AdamW):
    """AdamW that refuses vectors."""

    def refusal(self, role: str, shape: tuple[int, ...]) -> str:  # noqa: ARG002
        return "it has no rows" if len(shape) < 2 else ""


def test_groups_without_parameters_and_rules_without_a_way_are_refused() -> None:
    named, roles = {"a.w": Parameter(torch.ones(3))}, {"a.w": "norm"}
    with pytest.raises(UsageError, match=r"optim\.groups\.0\.match: no parameter is called 'b\.\*'; names are a\.w"):
        build_optimizer(named, roles, AdamW.model_validate({"groups": [{"match": "b.*"}]}))
    with pytest.raises(
        UsageError, match=r"Matrices cannot update a\.w \[3\]: it has no rows; name another rule, as in .*adamw"
    ):
        build_optimizer(named, roles, Matrices())
    build_optimizer(named, roles, Matrices.model_validate({"groups": [{"match": "a.w", "rule": {"kind": "adamw"}}]}))
