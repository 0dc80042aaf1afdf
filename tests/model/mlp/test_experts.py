"""Mixture of experts: truths that need no reference, a slow form of the same, and parity with transformers' blocks."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hornbook.model.config import mlp_config as config_mlp
from hornbook.model.forward_context import Context
from hornbook.model.layers.dropout import row_keys
from hornbook.model.mlp.experts import Experts
from hornbook.model.mlp.grouped import Weights, grouped_glu
from hornbook.model.mlp.mlp import GLU, activate

WIDTH, HIDDEN, ROWS, TIME = 24, 40, 3, 12
SIGMOID = config_mlp.SigmoidRouterConfig(groups=4, groups_active=2, scale=2.5)


def make(seed: int = 0, dtype: torch.dtype = torch.float32, **settings: Any) -> Experts:
    """Experts with every parameter random."""
    experts = Experts(WIDTH, HIDDEN, config_mlp.ExpertsConfig.model_validate(settings), layer=1)
    randomize(experts, seed)
    return experts.to(dtype)


def randomize(module: nn.Module, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for tensor in [*module.parameters(), *module.buffers()]:
            tensor.copy_(0.3 * torch.randn(tensor.shape, generator=generator))


def inputs(dtype: torch.dtype = torch.float32, rows: int = ROWS, time: int = TIME, seed: int = 5) -> Tensor:
    return torch.randn(rows, time, WIDTH, generator=torch.Generator().manual_seed(seed)).to(dtype)


def outputs(experts: Experts, x: Tensor, context: Context | None = None) -> Tensor:
    return experts(x, context or Context())[0]


def by_every_expert(experts: Experts, x: Tensor) -> Tensor:
    """Every expert serves every token, and what was not chosen counts 0; in plain autograd."""
    routing = experts.router(x, Context())
    chosen = F.one_hot(experts.served(routing.experts), len(experts.gate) + 1)[..., :-1]
    weights = (chosen * routing.weights[..., None]).sum(-2)
    gates, ups = (torch.einsum("efd,btd->btef", matrix, x) for matrix in (experts.gate, experts.up))
    each = torch.einsum("edf,btef->bted", experts.down, activate(gates, experts.activation) * ups)
    y = (weights[..., None] * each).sum(-2)
    return y if experts.shared is None else y + experts.shared(x)


def gradients(y: Tensor, *tensors: Tensor) -> list[Tensor]:
    weights = torch.linspace(-1, 1, y.numel(), dtype=y.dtype).sin().view_as(y)
    found = torch.autograd.grad((y * weights).sum(), tensors, allow_unused=True)
    return [each for each in found if each is not None]


def trained(experts: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in experts.parameters() if parameter.requires_grad]


def assert_equal(found: list[Tensor], wanted: list[Tensor], tolerance: float) -> None:
    assert len(found) == len(wanted)
    for mine, other in zip(found, wanted, strict=True):
        difference, largest = float((mine - other).detach().abs().max()), float(other.detach().abs().max())
        assert difference <= tolerance * max(largest, 1e-30)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(
    "settings",
    [
        {"count": 4, "active": 2},
        {"count": 8, "active": 3, "router": config_mlp.SoftmaxRouterConfig(renormalize=False)},
        {"count": 8, "active": 3, "router": SIGMOID, "shared_hidden": 16},
        {"count": 6, "active": 1, "router": config_mlp.SwitchRouterConfig(), "capacity": 1.0},
        {"count": 4, "active": 2, "capacity": 0.7, "activation": "gelu"},
    ],
)
def test_groups_equal_every_expert_on_every_token(settings: dict[str, Any], dtype: torch.dtype) -> None:
    experts, x = make(dtype=dtype, **settings), inputs(dtype).requires_grad_()
    if "capacity" in settings:
        assert bool((experts.served(experts.router(x, Context()).experts) == settings["count"]).any())
    tolerance = 1e-5 if dtype == torch.float32 else 1e-12
    y, wanted = outputs(experts, x), by_every_expert(experts, x)
    assert_equal([y], [wanted], tolerance)
    assert_equal(gradients(y, x, *trained(experts)), gradients(wanted, x, *trained(experts)), tolerance)


def test_in_bfloat16_products_are_rounded_and_nothing_else() -> None:
    """Gradients of float32 weights are float32, and the error is that of bfloat16 products."""
    experts, x = make(count=4), inputs(torch.bfloat16).requires_grad_()
    wide = x.detach().float().requires_grad_()
    y, wanted = outputs(experts, x), outputs(experts, wide)
    assert y.dtype == torch.bfloat16
    found = gradients(y.float(), x, *trained(experts))
    assert [each.dtype for each in found[1:]] == [torch.float32] * 4
    assert_equal(
        [y.float(), *(each.float() for each in found)], [wanted, *gradients(wanted, wide, *trained(experts))], 3e-2
    )


def test_no_row_served_and_experts_without_tokens() -> None:
    x = inputs().flatten(0, 1).requires_grad_()
    weights = torch.rand(len(x), 2, requires_grad=True)
    matrices = Weights(
        *(torch.randn(4, *shape, requires_grad=True) for shape in ((HIDDEN, WIDTH),) * 2 + ((WIDTH, HIDDEN),))
    )
    none = torch.full((len(x), 2), 4)
    y = grouped_glu(x, none, weights, matrices)
    assert not y.any()
    assert not any(each.any() for each in gradients(y, x, weights, *matrices))
    one = torch.full((len(x), 2), 4)
    one[:, 1] = 2
    d_gate = gradients(grouped_glu(x, one, weights, matrices), matrices.gate)[0]
    assert d_gate[2].any()
    assert not d_gate[[0, 1, 3]].any()


# ---- Truths


@pytest.mark.parametrize("router", [config_mlp.SoftmaxRouterConfig(renormalize=False), SIGMOID])
def test_equal_experts_are_one_dense_unit_times_the_sum_of_gates(router: config_mlp.RouterConfig) -> None:
    experts, x = make(count=8, active=3, router=router), inputs()
    with torch.no_grad():
        for tensor in (experts.gate, experts.up, experts.down):
            tensor.copy_(tensor[:1].expand_as(tensor).clone())
    total = experts.router(x, Context()).weights.sum(-1, keepdim=True)
    dense = F.linear(F.silu(F.linear(x, experts.gate[0])) * F.linear(x, experts.up[0]), experts.down[0])
    assert_equal([outputs(experts, x)], [total * dense], 1e-5)


@pytest.mark.parametrize(
    "router", [config_mlp.SoftmaxRouterConfig(), config_mlp.SwitchRouterConfig(), config_mlp.SigmoidRouterConfig()]
)
def test_one_expert_is_a_dense_unit(router: config_mlp.RouterConfig) -> None:
    experts, dense = make(count=1, active=1, router=router), GLU(WIDTH, HIDDEN, config_mlp.GLUConfig())
    with torch.no_grad():
        for name in ("gate", "up", "down"):
            dense.get_parameter(f"{name}.weight").copy_(experts.get_parameter(name)[0])
    assert_equal([outputs(experts, inputs())], [dense(inputs())], 1e-5)


def test_an_infinite_capacity_drops_nothing_and_a_small_one_what_comes_last() -> None:
    x = inputs()
    free, wide, narrow = (make(count=4, capacity=capacity) for capacity in (None, 1e9, 0.4))
    assert torch.equal(outputs(free, x), outputs(wide, x))
    chosen = free.router(x, Context()).experts
    served = narrow.served(chosen)
    room = int(0.4 * 2 * TIME / 4)
    for row in range(ROWS):
        for e in range(4):
            wanted = [(t, e) for t in range(TIME) if e in chosen[row, t]][:room]
            assert [(t, e) for t in range(TIME) if e in served[row, t]] == wanted
    assert torch.equal(outputs(narrow.eval(), x), outputs(free, x))


def test_what_a_capacity_drops_passes_by_and_later_tokens_do_not_matter() -> None:
    experts, x = make(count=4, capacity=0.4), inputs()
    y = outputs(experts, x)
    dropped = (experts.served(experts.router(x, Context()).experts) == 4).all(-1)
    assert dropped.any()
    assert not y[dropped].any()
    assert y[~dropped].any(-1).all()
    other = x.clone()
    other[:, 8:] = inputs(seed=9)[:, 8:]
    assert torch.equal(outputs(experts, other)[:, :8], y[:, :8])


def test_rows_do_not_depend_on_the_rows_beside_them() -> None:
    experts, x = make(count=4, capacity=0.6, z_loss=0.01), inputs()
    y, auxiliary = experts(x, Context())
    parts = [experts(x[rows], Context()) for rows in (slice(0, 1), slice(1, 3))]
    assert_equal([torch.cat([part[0] for part in parts])], [y], 1e-6)
    for name, value in auxiliary.items():
        assert_equal([torch.cat([part[1][name] for part in parts])], [value], 1e-6)


def test_jitter_is_keyed_by_sample_step_and_layer() -> None:
    keys = row_keys(1, 2, torch.arange(ROWS))
    x, context = inputs(), Context(keys=keys)
    settings = {"count": 8, "active": 1, "router": config_mlp.SwitchRouterConfig(jitter=0.3)}
    experts = make(**settings)
    plain, noisy = experts.router(x, Context()).logits, experts.router(x, context).logits
    assert torch.equal(experts.router(x, context).logits, noisy)
    assert float((plain - noisy).detach().abs().mean()) > 0.01
    alone = experts.router(x[1:2], Context(keys=keys[1:2])).logits
    assert_equal([alone], [noisy[1:2]], 1e-6)
    elsewhere = Experts(WIDTH, HIDDEN, config_mlp.ExpertsConfig.model_validate(settings), layer=2)
    elsewhere.load_state_dict(experts.state_dict())
    assert not torch.equal(elsewhere.router(x, context).logits, noisy)


# ---- Parity with transformers

FAMILIES = ("mixtral", "olmoe", "qwen3_moe", "deepseek_v3")


def reference(family: str) -> tuple[nn.Module, dict[str, Any]]:
    """transformers' block, everything in it random, and our settings for the same."""
    import transformers
    from transformers.models.deepseek_v3 import modeling_deepseek_v3
    from transformers.models.mixtral import modeling_mixtral
    from transformers.models.olmoe import modeling_olmoe
    from transformers.models.qwen3_moe import modeling_qwen3_moe

    shape = {
        "hidden_size": WIDTH,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "_experts_implementation": "eager",
    }
    made: Any
    if family == "mixtral":
        made = transformers.MixtralConfig(**shape, intermediate_size=HIDDEN, num_local_experts=8)
        block, settings = modeling_mixtral.MixtralSparseMoeBlock(made), {"count": 8, "active": 2}
    elif family == "olmoe":
        made = transformers.OlmoeConfig(**shape, intermediate_size=HIDDEN, num_experts=8, num_experts_per_tok=3)
        block = modeling_olmoe.OlmoeSparseMoeBlock(made)
        settings = {"count": 8, "active": 3, "router": config_mlp.SoftmaxRouterConfig(renormalize=False)}
    elif family == "qwen3_moe":
        made = transformers.Qwen3MoeConfig(
            **shape, moe_intermediate_size=HIDDEN, num_experts=8, num_experts_per_tok=3, norm_topk_prob=True
        )
        block, settings = modeling_qwen3_moe.Qwen3MoeSparseMoeBlock(made), {"count": 8, "active": 3}
    else:
        made = transformers.DeepseekV3Config(
            **shape, moe_intermediate_size=HIDDEN, n_routed_experts=8, num_experts_per_tok=3, n_group=4, topk_group=2,
            n_shared_experts=2, routed_scaling_factor=2.5,
        )  # fmt: skip
        block = modeling_deepseek_v3.DeepseekV3MoE(made)
        settings = {"count": 8, "active": 3, "router": SIGMOID, "shared_hidden": 2 * HIDDEN}
    randomize(block, seed=3)
    return block.eval(), settings


def copied(block: Any, settings: dict[str, Any]) -> Experts:
    """Our experts with the values of transformers' block."""
    experts = Experts(WIDTH, HIDDEN, config_mlp.ExpertsConfig.model_validate(settings), layer=0)
    with torch.no_grad():
        experts.router.weight.copy_(block.gate.weight)
        both = block.experts.gate_up_proj
        experts.gate.copy_(both[:, :HIDDEN])
        experts.up.copy_(both[:, HIDDEN:])
        experts.down.copy_(block.experts.down_proj)
        if experts.shared is not None:
            for name in ("gate", "up", "down"):
                theirs = block.shared_experts.get_parameter(f"{name}_proj.weight")
                experts.shared.get_parameter(f"{name}.weight").copy_(theirs)
            experts.get_parameter("router.bias").copy_(block.gate.e_score_correction_bias)
    return experts


@pytest.mark.parametrize("family", FAMILIES)
def test_parity_with_transformers(family: str) -> None:
    block: Any
    block, settings = reference(family)
    experts, x = copied(block, settings), inputs().requires_grad_()
    y, wanted = outputs(experts, x), block(x)
    assert_equal([y], [wanted], 1e-5)
    ours = gradients(y, x, experts.router.weight, experts.gate, experts.up, experts.down)
    both, rest = block.experts.gate_up_proj, block.experts.down_proj
    theirs = gradients(wanted, x, block.gate.weight, both, rest)
    assert_equal([*ours[:2], torch.cat(ours[2:4], 1), ours[4]], theirs, 1e-5)


# ---- With recomputation and compilation


def jittered() -> tuple[Experts, Tensor, Context]:
    experts, x = make(count=4, router=config_mlp.SoftmaxRouterConfig(jitter=0.1)), inputs().requires_grad_()
    return experts, x, Context(keys=row_keys(1, 2, torch.arange(ROWS)))


def all_gradients(experts: Experts, x: Tensor, found: tuple[Tensor, dict[str, Tensor]]) -> list[Tensor]:
    total = found[0].sin().sum() + found[1]["balance"].sum()
    return list(torch.autograd.grad(total, [x, *experts.parameters()]))


def test_recomputation_gives_the_same_bits() -> None:
    from torch.utils.checkpoint import checkpoint

    experts, x, context = jittered()
    wanted = all_gradients(experts, x, experts(x, context))
    again: Any = checkpoint(experts, x, context, use_reentrant=False, preserve_rng_state=False)
    assert_equal(all_gradients(experts, x, again), wanted, 0.0)


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # the compiler handles its own warnings, and cannot where they are errors
def test_compilation_gives_the_same_numbers() -> None:
    experts, x, context = jittered()
    wanted = all_gradients(experts, x, experts(x, context))
    assert_equal(all_gradients(experts, x, torch.compile(experts)(x, context)), wanted, 1e-5)
