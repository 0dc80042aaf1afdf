"""A training step on a device whose values the host cannot see: every shape fits, and nothing waits for the device.

torch's device `meta` stands for a GPU: its tensors have shapes, dtypes and devices, and asking for a value is an error.
So is here whatever makes a host wait for a GPU: a copy that is not asynchronous, a tensor made of numbers there.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.utils import counters
from torch._higher_order_ops.flex_attention import flex_attention_backward

import hornbook
from hornbook.data.batch import Batch, Source
from hornbook.errors import UsageError
from hornbook.model.attention import attend as attend_module
from hornbook.model.attention import device_attention
from hornbook.model.build_model import build_model, parameter_roles
from hornbook.model.config.model_config import ModelConfig
from hornbook.model.heads import head
from hornbook.optim.build_optimizer import build_optimizer
from hornbook.optim.config.clipping_config import AdaptiveClip, AnyClip, NormClip, ValueClip, ZScoreClip
from hornbook.optim.config.optim import AdamW
from hornbook.optim.optimizer import Optimizer
from hornbook.parallel import compiled_model as compiled
from hornbook.parallel.config import ParallelConfig
from hornbook.parallel.engine import Engine
from hornbook.parallel.parallelize import parallelize
from hornbook.parallel.world import World
from hornbook.settings.training import TrainConfig
from tests.model.attention.test_device_attention import EAGER_FLEX
from tests.optim.kinds import KINDS, config_of

pytestmark = pytest.mark.filterwarnings("default")  # the compiler cannot work where its own warnings are errors
META = torch.device("meta")
PACKAGE = str(Path(hornbook.__path__[0]))
VOCAB, ROWS, TIME = 131, 3, 64  # rows of so many logits have room behind them
SIZES = {"layers": 3, "width": 64, "heads": 4}
ROPE = {"position": {"kind": "rope"}, "norm": {"kind": "rms"}, "mlp": {"kind": "glu"}}
FAMILIES: dict[str, tuple[dict[str, Any], str]] = {
    "gpt2": ({"dropout": 0.1}, "whole"),
    "gpt2, dropout of probabilities": ({"attention": {"kind": "full", "dropout": 0.1}}, "formula"),
    "llama, documents": ({**ROPE, "attention": {"kind": "full", "kv_heads": 2}}, "documents"),
    "llama, window": ({**ROPE, "attention": {"kind": "full", "window": 9}}, "documents"),
    "squared relu, normalised queries": (
        {**ROPE, "attention": {"kind": "full", "qk_norm": "head"}, "mlp": {"kind": "mlp", "activation": "relu2"}},
        "documents",
    ),
    "soft cap": (
        {**ROPE, "attention": {"kind": "full", "softcap": 20.0, "window": 9}, "head": {"kind": "lm", "softcap": 30.0}},
        "blocks",
    ),
    "sinks": ({**ROPE, "attention": {"kind": "full", "sinks": True}}, "blocks"),
    "alibi": ({"position": {"kind": "alibi"}}, "blocks"),
    "bert": ({"kind": "encoder", "head": {"kind": "masked"}}, "documents"),
    "t5": (
        {"kind": "encoder_decoder", "position": {"kind": "relative"}, "head": {"kind": "lm", "scale": 0.5}},
        "blocks",
    ),
    "latent": ({**ROPE, "attention": {"kind": "latent", "query_rank": 24, "kv_rank": 16, "nope_dim": 16}}, "blocks"),
    "experts": ({**ROPE, "mlp": {"kind": "experts", "count": 4, "active": 2}}, "whole"),
}


@contextmanager
def no_wait() -> Iterator[None]:
    """Refuses copies between host and device that a host waits for. (Modes of torch would keep it from compiling.)

    FlexAttention's eager form, which stands for its kernel here, makes tensors of numbers: only our own code is judged.
    """
    to, tensor = torch.Tensor.to, torch.tensor

    def checked(x: Tensor, *args: Any, **options: Any) -> Tensor:
        found = to(x, *args, **options)
        assert found.device == x.device or options.get("non_blocking"), "a copy that the host waits for"
        return found

    def made(*args: Any, **options: Any) -> Tensor:
        found, ours = tensor(*args, **options), sys._getframe(1).f_code.co_filename.startswith(PACKAGE)
        assert found.device != META or not ours, "numbers that the host waits for, until they are on the device"
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.Tensor, "to", checked)
        patch.setattr(torch, "tensor", made)
        yield


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """`meta` counts as a GPU."""
    monkeypatch.setattr(device_attention, "_is_gpu", lambda x: x.device == META)
    monkeypatch.setattr(device_attention, "_compiles", lambda: True)
    monkeypatch.setattr(device_attention, "_flex_attention", lambda _: EAGER_FLEX)
    monkeypatch.setattr("torch.nn.attention.flex_attention._validate_device", lambda *_: None)
    monkeypatch.setattr("hornbook.model.mlp.grouped.multiplies_groups", lambda x: x.dtype == torch.bfloat16)
    monkeypatch.setitem(flex_attention_backward.py_kernels, DENSE, with_gradients_of_buffers)
    flex_attention_backward._dispatch_cache.clear()


DENSE = torch._C.DispatchKey.CompositeExplicitAutograd
dense_backward = flex_attention_backward.py_kernels[DENSE]


def with_gradients_of_buffers(*arguments: Any) -> Any:
    """FlexAttention's backward as a formula, which stands for its kernel where compiled code runs as it was traced.

    torch 2.13's gives no gradient of a bias there: it asks a saved tensor whether it wants one. The kernel gives one by
    the graph that was traced, and two layers that share a bias add theirs.
    """
    *rest, buffers, of_mask = arguments
    (output,) = rest[8].graph.find_nodes(op="output")  # gradients of score, row, head, query, key and the buffers
    gradients = output.args[0][5:]
    wanted = (each.detach().requires_grad_(its is not None) for each, its in zip(buffers, gradients, strict=True))
    return dense_backward(*rest, tuple(wanted), of_mask)


@pytest.fixture
def ways(gpu: None, monkeypatch: pytest.MonkeyPatch) -> list[str]:  # noqa: ARG001 - the GPU is there first
    """The ways that attention took. Not for compiled code: the list is a part of it, and grows at every call."""
    taken: list[str] = []
    choose = attend_module.choose_way

    def watched(*args: Any) -> str:
        taken.append(choose(*args))
        return taken[-1]

    monkeypatch.setattr(attend_module, "choose_way", watched)
    return taken


def make_engine(model: dict[str, Any], **train: Any) -> Engine:
    config = ModelConfig.model_validate({**SIZES, **model})
    settings = TrainConfig.model_validate({"precision": "bf16", "sequence": TIME, **train})
    return parallelize(build_model(config, VOCAB), ParallelConfig(), settings, World(META))


def batch(rows: int = ROWS, *, documents: bool, source: bool = False) -> Batch:
    """A microbatch on the host."""
    tokens = torch.randint(0, VOCAB, (rows, TIME), generator=torch.Generator().manual_seed(rows))
    lengths = [(TIME,) if not documents else (10 + i, TIME - 10 - i) for i in range(rows)]
    made = Batch(
        tokens=tokens,
        targets=tokens.roll(-1, 1),
        weights=(tokens % 5 > 0).float(),
        positions=torch.arange(TIME).expand(rows, -1),
        document_lengths=lengths,
        samples=torch.arange(rows),
        sources=torch.zeros(rows, dtype=torch.int64),
    )
    return replace(made, source=Source(tokens, made.positions, lengths)) if source else made


def take_step(engine: Engine, batches: list[Batch]) -> Tensor:
    """What the loop does between batch and fetch."""
    roles = parameter_roles(engine.model)
    optimizer = build_optimizer(engine.named_parameters, roles, AdamW())
    with no_wait():
        engine.zero_gradients()
        losses = engine.forward_backward(batches, 100.0, key=(3, 5))
        norm = engine.clip_gradients(1.0)
        applied = engine.step(optimizer)
        return torch.stack([losses["loss"], norm, applied])


@pytest.mark.parametrize(("model", "way"), FAMILIES.values(), ids=list(FAMILIES))
def test_a_step_waits_for_nothing(model: dict[str, Any], way: str, ways: list[str]) -> None:
    """Two microbatches, one of fewer rows. The loop then fetches three numbers at once."""
    engine = make_engine(model)
    whole = way in ("whole", "formula")
    batches = [batch(rows, documents=not whole, source=model.get("kind") == "encoder_decoder") for rows in (ROWS, 2)]
    scalars = take_step(engine, batches)
    assert scalars.device == META
    assert scalars.shape == (3,)
    assert set(ways) - {"documents"} <= {way}
    assert way in ways
    for parameter in engine.named_parameters.values():
        assert parameter.grad is not None
        assert parameter.grad.shape == parameter.shape


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What waited for the device, each time: the one place that is allowed to, or a look at an optimizer's state."""
    found: list[str] = []

    def noted(what: str) -> Callable[..., list[float]]:
        def values(*scalars: Any) -> list[float]:
            found.append(what)
            return [0.0 for _ in (scalars if what == "step" else scalars[0])]

        return values

    monkeypatch.setattr("hornbook.parallel.engine.fetch", noted("step"))
    monkeypatch.setattr("hornbook.optim.foreach.values_of", noted("state"))
    return found


def take_whole_step(engine: Engine, optimizer: Optimizer, batches: list[Batch], clip: AnyClip) -> None:
    """All of a step that the loop asks of the device."""
    with no_wait():
        engine.zero_gradients()
        losses = engine.forward_backward(batches, 100.0, key=(3, 5))
        norm = engine.clip_gradients(clip)
        applied, (loss, found) = engine.step_and_fetch(optimizer, losses["loss"], norm)
    assert (applied, loss, found) == (True, 0.0, 0.0)


PRECISIONS = [(kind, each) for kind in KINDS if kind != "sgd" for each in ("bf16", "bf16-pure", "fp16")]
PRECISIONS += [("adamw", "fp32"), ("adamw", "float8")]
"""An optimizer sees no other weights and gradients than in bf16. And torch's fused SGD knows no `meta`."""


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(("kind", "precision"), PRECISIONS)
def test_a_step_waits_once(kind: str, precision: str, waits: list[str]) -> None:
    """Whatever optimizer and precision. What the host must know of a new state it asks for once in a run."""
    engine = make_engine({"layers": 1}, precision=precision, float8={"emulate": True})
    roles = parameter_roles(engine.model)
    settings = {"refresh_every": 1} if kind == "soap" else {}
    config = config_of(kind, **settings)
    if precision == "bf16-pure" and not kind.startswith("adamw"):
        with pytest.raises(UsageError, match="round stochastically"):
            build_optimizer(engine.named_parameters, roles, config)
        return
    if precision == "bf16-pure" and kind == "adamw":
        config = config_of(kind, state="bf16")
    optimizer = build_optimizer(engine.named_parameters, roles, config)
    batches = [batch(rows, documents=False) for rows in (ROWS, 2)]
    for number in range(2):
        waits.clear()
        take_whole_step(engine, optimizer, batches, NormClip())
        assert waits.count("step") == 1
        assert ("state" in waits) == (number == 0 and kind in ("soap", "schedule_free", "schedule_free_sgd"))


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(
    "head",
    [
        {"kind": "token_classification", "labels": ["a", "b"]},
        {"kind": "classification", "labels": ["a", "b", "c"]},
        {"kind": "regression", "outputs": 2},
        {"kind": "span"},
    ],
    ids=lambda head: head["kind"],
)
def test_labels_wait_once(head: dict[str, Any], waits: list[str]) -> None:
    """Which tokens carry a label the host knows; it tells the device."""
    engine = make_engine({"head": {**head, "dropout": 0.1}})
    made = batch(documents=False)
    if head["kind"] == "regression":
        made = replace(made, values=torch.zeros(*made.tokens.shape, 2))
    optimizer = build_optimizer(engine.named_parameters, parameter_roles(engine.model), AdamW())
    take_whole_step(engine, optimizer, [made, made], NormClip())
    assert waits == ["step"]


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("clip", [ValueClip(), AdaptiveClip(), ZScoreClip()], ids=lambda clip: clip.kind)
def test_clipping_waits_for_nothing(clip: AnyClip, waits: list[str]) -> None:
    engine = make_engine({})
    optimizer = build_optimizer(engine.named_parameters, parameter_roles(engine.model), AdamW())
    for _ in range(2):
        take_whole_step(engine, optimizer, [batch(documents=False)], clip)
    assert waits == ["step"] * 2


def hornbook_makes_a_tensor() -> None:
    """As code in a file of hornbook would."""
    exec(compile("torch.tensor([1.0], device='meta')", f"{PACKAGE}/made_up.py", "exec"), {"torch": torch})


WAITS: list[Callable[[Tensor], object]] = [
    lambda x: float(x.sum()),
    lambda x: bool(x.any()),
    lambda x: x.tolist(),
    lambda x: x.nonzero(),
    lambda x: x.cpu(),
    lambda _: torch.ones(2).to(META),
    lambda _: hornbook_makes_a_tensor(),
]


@pytest.mark.parametrize("wait", WAITS)
def test_waiting_is_noticed(wait: Callable[[Tensor], object]) -> None:
    with no_wait(), pytest.raises((AssertionError, NotImplementedError, RuntimeError)):
        wait(torch.zeros(3, device=META))


def ragged(rows: int, seed: int, *, whole: bool, source: bool) -> Batch:
    """A microbatch of other documents than the last."""
    made, draw = batch(rows, documents=not whole, source=source), Random(seed)
    if whole:
        return made
    lengths = []
    for _ in range(rows):
        ends = [*sorted(draw.sample(range(1, TIME), 3 if source else draw.randint(1, 4))), TIME]
        lengths.append(tuple(end - start for start, end in pairwise([0, *ends])))
    if made.source is not None:
        made = replace(made, source=replace(made.source, document_lengths=lengths))
    return replace(made, document_lengths=lengths)


def graphs() -> int:
    """Compiled so far."""
    return counters["stats"]["unique_graphs"]


@pytest.mark.slow
@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("scope", ["blocks", "stack"])
@pytest.mark.parametrize(("model", "way"), FAMILIES.values(), ids=list(FAMILIES))
def test_nothing_is_compiled_twice(
    model: dict[str, Any], way: str, scope: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One graph for all layers of a stack, one for the loss, and as many without gradients; whatever the documents,
    the rows of a microbatch, dropout and the step."""
    monkeypatch.setattr(compiled, "BACKEND", "aot_eager")
    torch._dynamo.reset()
    counters.clear()
    engine = make_engine({**model, "layers": 5, "dropout": 0.1}, compile=True, compile_scope=scope)
    source, whole = model.get("kind") == "encoder_decoder", way in ("whole", "formula")
    batches = [ragged(rows, seed, whole=whole, source=source) for seed, rows in enumerate((3, 3, 2))]
    few = engine.model.head is not None and engine.model.head.before is not None  # of any number of tokens: two graphs
    expected = (2 if source else 1) + (2 if few else 1)
    for step in (0, 1):
        engine.zero_gradients()
        engine.forward_backward(batches, 100.0, key=(3, step))
        assert graphs() == expected
    if not few:  # an evaluation of few tokens has any number of them too
        for each in batches:
            assert engine.evaluate(each).shape == each.tokens.shape
        expected *= 2
        assert graphs() == expected
    engine.forward_backward(batches[1:], 100.0, key=(3, 2))
    assert graphs() == expected
    assert not counters["graph_break"]


@pytest.mark.slow
@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("loss", [{}, {"z_loss": 1e-4, "smoothing": 0.1}], ids=["plain", "with terms"])
def test_chunks_of_the_loss_share_their_code(loss: dict[str, float], monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one size, they need one graph in training and one in evaluation, for full microbatches and smaller ones."""
    monkeypatch.setattr(compiled, "BACKEND", "aot_eager")
    monkeypatch.setattr(head, "CHUNK_BYTES", 100)  # 50 tokens, of 192
    monkeypatch.setattr(head, "device_chunk_bytes", lambda _: 1)
    torch._dynamo.reset()
    counters.clear()
    engine = make_engine({"head": {"kind": "lm", "softcap": 30.0}}, compile=True, loss=loss)
    batches = [batch(rows, documents=False) for rows in (ROWS, ROWS, 2)]
    with no_wait():
        for step in (0, 1):
            engine.zero_gradients()
            engine.forward_backward(batches, 100.0, key=(3, step))
            assert graphs() == 2
        for each in batches:
            engine.evaluate(each)
    assert graphs() == 4
    assert not counters["graph_break"]


@pytest.mark.slow
@pytest.mark.usefixtures("gpu")
def test_samples_are_not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Text of any length is made by the model as it was written."""
    monkeypatch.setattr(compiled, "BACKEND", "aot_eager")
    torch._dynamo.reset()
    counters.clear()
    engine = make_engine({}, compile=True)
    for length in (5, 17, 40):
        assert engine.logits(torch.zeros(1, length, dtype=torch.int64)).shape == (1, length, VOCAB)
    assert graphs() == 0
    engine.evaluate(batch(documents=False))
    assert graphs() == 2
