"""muP and CompleteP: the factors of their tables, and coordinate checks of the trained model (Yang et al. 2022, D.1).

In a coordinate check a few Adam steps are taken at several sizes. Under the right parametrisation the size of every
activation is then the same at all of them: its slope over the size, both in logarithms, is 0.
"""

import math
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn

from hornbook.model.build_model import build_model, parameter_roles
from hornbook.model.config import head_config as config_head
from hornbook.model.config import init_config as config_init
from hornbook.model.config import mlp_config as config_mlp
from hornbook.model.config import model_config as config
from hornbook.model.config.attention_config import FullAttentionConfig
from hornbook.model.config.mup import derived_factors, learning_factors, unfit_for_mup, with_value
from hornbook.model.init.init import initialize
from hornbook.model.transformer import Transformer
from hornbook.optim.build_optimizer import build_optimizer
from hornbook.optim.config.rule import Factors
from tests.optim.kinds import config_of

VOCAB, HEAD_DIM = 4, 32
FLAT, STEEP = 0.05, 0.3
"""A slope is at most so far from 0 under muP; it is at least so large where learning rates do not transfer."""


def base(width: int, layers: int) -> config.ModelConfig:
    """The head begins at zero, so that logits are all learned (Yang et al. 2022, D.2), and the stream at one size."""
    silent: dict[str, config_init.Distribution] = {
        "head.weight": config_init.ConstantValues(value=0.0),
        "embedding.weight": config_init.NormalValues(std=0.5),
    }
    return config.ModelConfig(
        layers=layers,
        width=width,
        heads=width // HEAD_DIM,
        mlp=config_mlp.PlainMLPConfig(),
        head=config_head.LMHead(tied=False),
        init=config_init.ScaledNormal(std=0.02, overrides=silent),
    )


def parametrized(cfg: config.ModelConfig) -> config.ModelConfig:
    """With the factors that follow from the sizes, as a recipe has them."""
    for keys, value in derived_factors(cfg).items():
        cfg = with_value(cfg, keys, value)
    return cfg


def scaled(start: config.ModelConfig, width: int, layers: int) -> config.ModelConfig:
    """At another size, under muP, with `start` as the size its settings were tuned at."""
    init = config_init.MuP(base_width=start.width, base_layers=start.layers, overrides=start.init.overrides)
    sizes = {"width": width, "heads": width // HEAD_DIM, "layers": layers, "init": init}
    return parametrized(start.model_copy(update=sizes))


def train(cfg: config.ModelConfig, steps: int, lr: float, seed: int, kind: str = "adamw") -> Transformer:
    """A model after a few steps on rows in which each token follows from the one before."""
    model = build_model(cfg, VOCAB).to_empty(device="cpu")
    initialize(model, cfg, seed)
    roles = parameter_roles(model)
    settings = config_of(kind, lr=lr, weight_decay=0.0)
    optimizer = build_optimizer(dict(model.named_parameters()), roles, settings, learning_factors(roles, cfg))
    tokens = rows()
    for _ in range(steps):
        model.zero_grad()
        hidden, _ = model(tokens[:, :-1])
        assert model.head is not None
        (model.head.losses(hidden, tokens[:, 1:], torch.ones(2, 32))["loss"] / 64).backward()
        optimizer.step()
    return model


def rows() -> Tensor:
    return (torch.tensor([[1], [6]]) + 5 * torch.arange(33)[None]) % VOCAB


def changes(cfg: config.ModelConfig, steps: int, lr: float, seed: int, kind: str = "adamw") -> dict[str, float]:
    """Root mean square of how far each activation has moved after `steps` steps."""
    before, after = activations(train(cfg, 0, lr, seed)), activations(train(cfg, steps, lr, seed, kind))
    return {name: float((after[name] - before[name]).square().mean().sqrt()) for name in after}


@torch.no_grad()
def activations(model: Transformer) -> dict[str, Tensor]:
    """What attention and MLP of all blocks, the stack and the head give."""
    found: dict[str, list[Tensor]] = {"attention": [], "mlp": [], "stream": []}

    def keep(part: nn.Module, name: str) -> None:
        def hook(_module: nn.Module, _args: tuple[Tensor, ...], output: Tensor) -> None:
            found[name].append(output)

        part.register_forward_hook(hook)

    for block in model.blocks.values():
        keep(block.get_submodule("attention"), "attention")
        keep(block.get_submodule("mlp"), "mlp")
    assert model.norm is not None
    assert model.head is not None
    model.norm.register_forward_pre_hook(lambda _module, args: found["stream"].append(args[0]))
    logits = model.head.logits(model(rows()[:, :-1])[0])
    return {name: torch.stack(values) for name, values in found.items()} | {"logits": logits}


def slopes(models: dict[int, list[config.ModelConfig]], steps: int, lr: float, kind: str = "adamw") -> dict[str, float]:
    """Slope over the size of each activation's size; several models of one size are averaged."""
    sizes = {
        size: [changes(cfg, steps, lr, seed, kind) for seed, cfg in enumerate(each)] for size, each in models.items()
    }
    names = next(iter(sizes.values()))[0]
    means = {name: [sum(run[name] for run in runs) / len(runs) for runs in sizes.values()] for name in names}
    return {name: slope(list(models), values) for name, values in means.items()}


def slope(sizes: Sequence[int], values: Sequence[float]) -> float:
    """Of the line through the points in doubly logarithmic scale, by least squares."""
    x, y = torch.tensor(sizes).double().log2(), torch.tensor(values).double().log2()
    x = x - x.mean()
    return float((x * y).sum() / (x * x).sum())


def by_width(widths: Sequence[int], seeds: int, mup: bool) -> dict[int, list[config.ModelConfig]]:
    start = base(widths[0], layers=2)
    plain = {width: start.model_copy(update={"width": width, "heads": width // HEAD_DIM}) for width in widths}
    return {width: [scaled(start, width, 2) if mup else plain[width]] * seeds for width in widths}


def by_depth(depths: Sequence[int], seeds: int, mup: bool) -> dict[int, list[config.ModelConfig]]:
    start = base(64, layers=depths[0])
    plain = {depth: start.model_copy(update={"layers": depth}) for depth in depths}
    return {depth: [scaled(start, 64, depth) if mup else plain[depth]] * seeds for depth in depths}


def assert_flat(found: dict[str, float]) -> None:
    assert all(abs(value) < FLAT for value in found.values()), found


def test_activations_move_alike_at_every_width() -> None:
    widths, seeds = [64, 128, 256], 2
    assert_flat(slopes(by_width(widths, seeds, mup=True), steps=4, lr=0.002))
    standard = slopes(by_width(widths, seeds, mup=False), steps=4, lr=0.002)
    assert all(value > STEEP for value in standard.values()), standard


@pytest.mark.parametrize(("kind", "lr"), [("sgd", 0.05), ("lion", 0.002)])
def test_other_updates_move_them_alike_too(kind: str, lr: float) -> None:
    """SGD has factors of its own: its updates shrink with the gradient, which shrinks with the width."""
    widths, seeds = [64, 128, 256], 2
    assert_flat(slopes(by_width(widths, seeds, mup=True), 4, lr, kind))
    assert slopes(by_width(widths, seeds, mup=False), 4, lr, kind)["logits"] > STEEP


def test_activations_move_alike_at_every_depth() -> None:
    """The standard form adds up more branches; its logits show nothing of it, for the last norm takes it out.

    The first step moves only the head, which begins at zero, so that two show the first update of the blocks.
    """
    depths, seeds = [4, 16], 4
    assert_flat(slopes(by_depth(depths, seeds, mup=True), steps=2, lr=0.002))
    assert slopes(by_depth(depths, 1, mup=False), steps=2, lr=0.002)["stream"] > STEEP


@pytest.mark.slow
@pytest.mark.parametrize("steps", [2, 4, 8])
def test_activations_move_alike_from_width_64_to_1024(steps: int) -> None:
    widths = [64, 128, 256, 512, 1024]
    assert_flat(slopes(by_width(widths, 3, mup=True), steps, lr=0.002))
    standard = slopes(by_width(widths, 1, mup=False), steps, lr=0.002)
    assert standard["stream"] > STEEP
    assert standard["logits"] > STEEP


@pytest.mark.slow
def test_activations_move_alike_from_4_to_64_layers() -> None:
    depths = [4, 8, 16, 32, 64]
    assert_flat(slopes(by_depth(depths, 4, mup=True), steps=2, lr=0.002))
    assert slopes(by_depth(depths, 1, mup=False), steps=2, lr=0.002)["stream"] > STEEP


@pytest.mark.slow
def test_one_curve_of_the_loss_over_the_learning_rate_for_three_widths() -> None:
    """Up to where training breaks down. In the standard form the curve moves by the factor of the width."""
    rates = [2.0**-k for k in range(12, 6, -1)]

    def curve(cfg: config.ModelConfig) -> list[float]:
        return [sum(loss(train(cfg, 8, rate, seed)) for seed in range(2)) / 2 for rate in rates]

    under, without = by_width([64, 128, 256], 1, mup=True), by_width([64, 128, 256], 1, mup=False)
    small, *larger = [curve(each[0]) for each in under.values()]
    assert all(found == pytest.approx(small, rel=0.1) for found in larger)
    small, *larger = [curve(each[0]) for each in without.values()]
    assert larger[0][:-1] == pytest.approx(small[1:], rel=0.2)
    assert larger[1][:-2] == pytest.approx(small[2:], rel=0.2)


@torch.no_grad()
def loss(model: Transformer) -> float:
    tokens = rows()
    assert model.head is not None
    return float(model.head.losses(model(tokens[:, :-1])[0], tokens[:, 1:], torch.ones(2, 32))["loss"] / 64)


# ---- The tables


def test_factors_of_the_optimizer() -> None:
    """Table 1 of arXiv 2505.01618 at m = 4 and D = 9, with power 1/2 so that no factor is 1 by chance."""
    init = config_init.MuP(base_width=64, base_layers=2, depth_power=0.5)
    cfg = config.ModelConfig(width=256, layers=18, init=init)
    roles = {
        "embedding.weight": "embedding",
        "norm.weight": "norm",
        "head.weight": "head",
        "head.dense.weight": "matrix",
    }
    roles |= {"blocks.3.mlp.up.weight": "matrix", "blocks.3.norm1.weight": "norm", "blocks.3.mlp.up.bias": "vector"}
    found = learning_factors(roles, cfg)
    ends = Factors(lr=1, eps=1 / 4, weight_decay=1)
    vectors = Factors(lr=1 / 3, eps=1 / 12, weight_decay=1)
    assert found == {
        "embedding.weight": ends,
        "norm.weight": ends,
        "head.weight": ends,
        "head.dense.weight": Factors(lr=1 / 4, eps=1 / 4, weight_decay=4),
        "blocks.3.mlp.up.weight": Factors(lr=1 / 12, eps=1 / 12, weight_decay=4),
        "blocks.3.norm1.weight": vectors,
        "blocks.3.mlp.up.bias": vectors,
    }
    assert learning_factors(roles, config.ModelConfig()) == {}


def test_factors_of_the_model() -> None:
    grown = scaled(base(64, layers=2), width=256, layers=8)
    assert isinstance(grown.head, config_head.LMHead)
    assert grown.head.scale == 1 / 4
    assert isinstance(grown.block, config.PreNorm)
    assert grown.block.multiplier == 1 / 4
    assert isinstance(grown.attention, FullAttentionConfig)
    assert grown.attention.scale == 1 / HEAD_DIM


def test_layers_of_a_pattern_have_their_scale_too() -> None:
    window = config.LayerConfig(attention=FullAttentionConfig(window=8, head_dim=16))
    cfg = config.ModelConfig(init=config_init.MuP(base_width=64), pattern=[config.LayerConfig(), window])
    found = parametrized(cfg)
    scales = [found.layer(i).attention for i in range(2)]
    assert [each.scale for each in scales if isinstance(each, FullAttentionConfig)] == [1 / 64, 1 / 16]
    assert isinstance(found.block, config.PreNorm)
    assert found.block.multiplier == 1


def test_what_has_no_place_for_a_factor_is_refused() -> None:
    deep = config_init.MuP(base_width=64, base_layers=2)
    ((key, text),) = unfit_for_mup(config.ModelConfig(init=deep, block=config.PostNorm()))
    assert (key, text[:52]) == ("model.block.kind", "model.init.base_layers scales branches, which 'post'")
    ((key, text),) = unfit_for_mup(config.ModelConfig(kind="encoder", init=deep, head=config_head.MaskedHead()))
    assert (key, text[:32]) == ("model.head.kind", "muP scales what the head reads, ")


def test_slope() -> None:
    assert slope([1, 2, 4], [3.0, 3 * math.sqrt(2), 6.0]) == pytest.approx(0.5)
