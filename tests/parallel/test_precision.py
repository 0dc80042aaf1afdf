"""bf16 on a CPU without it: every product of every family is computed in float32, and the numbers are those of bf16."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from hornbook.model.build_model import build_model
from hornbook.model.config.model_config import ModelConfig
from hornbook.model.config.surgery_config import Lora
from hornbook.model.generate.generate import generate
from hornbook.model.init.init import initial_values
from hornbook.model.layers import products
from hornbook.model.layers.linear import Linear
from hornbook.model.surgery.operate import operate
from hornbook.model.transformer import Source
from hornbook.parallel.config import ParallelConfig
from hornbook.parallel.engine import Engine
from hornbook.parallel.parallelize import parallelize
from hornbook.settings.training import TrainConfig
from tests.parallel.families import MODELS, VOCAB, grid, model_config

SEQUENCE = 32
LATENT = {"kind": "latent", "kv_rank": 16, "nope_dim": 8, "rope_dim": 8, "value_dim": 8}
CAPPED = {"kind": "full", "softcap": 20.0, "sinks": True}
OTHERS: dict[str, dict[str, Any]] = {
    "latent": {"attention": LATENT},
    "capped": {"attention": CAPPED, "head": {"kind": "lm", "softcap": 30.0, "tied": False}},
}
"""Decoders beside the families."""
PRODUCTS = ("mm", "bmm", "addmm", "baddbmm", "addbmm", "mv", "addmv", "dot", "linear", "convolution", "grouped_mm")
"""Operators of torch that multiply matrices, and attention."""
NARROW = (torch.bfloat16, torch.float16)


class NoNarrowProducts(TorchDispatchMode):
    """Fails at the first matrix product of a narrow type."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        name = func.overloadpacket.__name__.strip("_")
        if name in PRODUCTS or "attention" in name:
            dtypes = {each.dtype for each in tree_leaves((args, kwargs or {})) if isinstance(each, Tensor)}
            assert not dtypes & set(NARROW), f"{name} of {dtypes}"
        return func(*args, **kwargs or {})


@pytest.fixture
def wide(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[bool], None]]:
    """`wide(True)`: a CPU that multiplies no narrow type; `wide(False)`: one that multiplies all."""

    def choose(widened: bool) -> None:
        monkeypatch.setattr(products, "_multiplies", lambda dtype: not widened or dtype not in NARROW)

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield choose
    torch.set_num_threads(threads)


def make_engine(config: ModelConfig, precision: str, lora: bool = False) -> Engine:
    model = build_model(config, VOCAB, "cpu")
    with torch.no_grad():
        for name, values in initial_values(model, config, seed=1):
            model.get_parameter(name).copy_(values)
    if lora:
        operate(model, [Lora(kind="lora", rank=4)])
        generator = torch.Generator().manual_seed(0)
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, std=0.1, generator=generator)
    return parallelize(
        model, ParallelConfig(), TrainConfig.model_validate({"precision": precision, "device": "cpu", "threads": 1})
    )


def step(engine: Engine, family: str, corpus: Path) -> tuple[float, float]:
    """Loss and gradient norm of one step without dropout."""
    batches = grid(family, str(corpus), 0, 2, SEQUENCE)
    engine.zero_gradients()
    total = float(sum(batch.weights.sum() for batch in batches))
    losses = engine.forward_backward(batches, total)
    return float(losses["loss"]) / total, float(engine.clip_gradients(1.0))


CASES = [*((name, False) for name in (*MODELS, *OTHERS)), ("prefix", True), ("latent", True)]
"""(model, whether with LoRA)."""


def config_of(name: str) -> tuple[ModelConfig, str]:
    """The model, and the family whose rows it reads."""
    if name not in OTHERS:
        return model_config(name), name
    return ModelConfig.model_validate({"layers": 2, "width": 32, "heads": 2, **OTHERS[name]}), "experts"


@pytest.mark.parametrize(("name", "lora"), CASES)
def test_no_product_is_narrow_and_the_numbers_are_those_of_bf16(
    name: str, lora: bool, wide: Callable[[bool], None], marked_corpus: Path
) -> None:
    config, family = config_of(name)
    wide(False)
    native = step(make_engine(config, "bf16", lora), family, marked_corpus)
    exact = step(make_engine(config, "fp32", lora), family, marked_corpus)
    wide(True)
    engine = make_engine(config, "bf16", lora)
    with NoNarrowProducts():
        widened = step(engine, family, marked_corpus)
        engine.evaluate(grid(family, str(marked_corpus), 0, 2, SEQUENCE)[0])
    assert widened == pytest.approx(native, rel=5e-4)
    assert abs(widened[1] - native[1]) < abs(exact[1] - native[1]), "float32 throughout is not bf16"


@pytest.mark.parametrize("name", ["prefix", "experts", "delta", "latent", "capped", "t5"])
def test_generation_multiplies_nothing_narrow(name: str, wide: Callable[[bool], None]) -> None:
    wide(True)
    model = make_engine(config_of(name)[0], "bf16").model.eval()
    prompt = list(range(20))
    with NoNarrowProducts():
        memory = model.encode(Source(torch.tensor([prompt]), torch.arange(20)[None])) if name == "t5" else None
        tokens = list(generate(model, prompt, max_tokens=4, greedy=True, memory=memory))
    assert len(tokens) == 4


@pytest.mark.parametrize("name", ["bert", "local", "t5", "bart", "prefix", "delta", "latent", "capped"])
def test_bfloat16_weights_compute_what_rounded_float32_ones_do(name: str, marked_corpus: Path) -> None:
    config, family = config_of(name)
    pure, rounded = make_engine(config, "bf16-pure"), make_engine(config, "bf16")
    with torch.no_grad():
        for parameter in rounded.model.parameters():
            parameter.copy_(parameter.bfloat16())
    found, expected = (step(each, family, marked_corpus) for each in (pure, rounded))
    assert found[0] == pytest.approx(expected[0], rel=5e-3)
    assert found[1] == pytest.approx(expected[1], rel=3e-2)
    parameters = list(pure.named_parameters.values())
    assert {each.dtype for each in parameters} == {each.grad.dtype for each in parameters if each.grad is not None}
    assert {each.dtype for each in parameters} == {torch.bfloat16}
    batch = grid(family, str(marked_corpus), 0, 2, SEQUENCE)[0]
    assert torch.allclose(pure.evaluate(batch), rounded.evaluate(batch), rtol=0.05, atol=0.05)


@pytest.mark.parametrize("scaling", ["tensor", "row"])
@pytest.mark.parametrize("name", ["bert", "t5", "prefix", "experts", "latent"])
def test_float8_is_near_bfloat16_for_every_family(name: str, scaling: str, marked_corpus: Path) -> None:
    config, family = config_of(name)
    settings = {"precision": "float8", "float8": {"scales": scaling, "emulate": True}, "device": "cpu", "threads": 1}
    reference, narrow = make_engine(config, "bf16"), make_engine(config, "fp32")
    engine = parallelize(narrow.model, ParallelConfig(), TrainConfig.model_validate(settings))
    assert any(isinstance(each, Linear) and each.product is not None for each in engine.model.modules())
    found, expected = (step(each, family, marked_corpus) for each in (engine, reference))
    assert found != expected
    assert found[0] == pytest.approx(expected[0], rel=0.02)
    assert found[1] == pytest.approx(expected[1], rel=0.2)
