"""Bytes kept for backward: the closed form is what autograd's hooks see, to the byte."""

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from hornbook.data.batch import Batch, Detection, Source
from hornbook.errors import UsageError
from hornbook.model.build_model import build_model
from hornbook.model.config.head_config import LMHead, MaskedHead
from hornbook.model.config.model_config import ModelConfig
from hornbook.model.config.part import Rows
from hornbook.model.config.saved_bytes import saved_bytes
from hornbook.model.heads.label_heads import CHOOSABLE, END, START
from hornbook.model.init.init import initialize
from hornbook.model.layers.saved_tensors import Rebuilding
from hornbook.parallel.config import ParallelConfig, SelectiveRecompute
from hornbook.parallel.engine import Engine
from hornbook.parallel.parallelize import parallelize
from hornbook.settings.training import TrainConfig

VOCAB = 96
SIZES = {"layers": 3, "width": 32, "heads": 4, "dropout": 0.1}
GPT2 = {
    "attention": {"kind": "full", "bias": True, "out_bias": True, "dropout": 0.1},
    "mlp": {"kind": "mlp"},
    "norm": {"kind": "layer"},
    "position": {"kind": "learned", "length": 256},
}
LLAMA = {"attention": {"kind": "full", "kv_heads": 2}, "head": {"kind": "lm", "tied": False}}
BERT = GPT2 | {
    "kind": "encoder",
    "block": {"kind": "post"},
    "embedding": {"norm": True, "types": 2},
    "mlp": {"kind": "mlp", "activation": "gelu"},
    "head": {"kind": "masked"},
}
FAMILIES: dict[str, dict[str, Any]] = {"gpt2": GPT2, "llama": LLAMA, "bert": BERT}
OTHERS: dict[str, dict[str, Any]] = {
    "gemma": {
        "attention": {"kind": "full", "window": 24, "softcap": 50.0, "head_dim": 16},
        "block": {"kind": "sandwich"},
        "norm": {"kind": "rms_offset"},
        "mlp": {"kind": "glu", "activation": "gelu_tanh"},
        "embedding": {"scale": 5.6},
        "head": {"kind": "lm", "softcap": 30.0},
    },
    "qwen": {"attention": {"kind": "full", "kv_heads": 2, "qk_norm": "head", "head_dim": 16}},
    "olmo": {
        "attention": {"kind": "full", "qk_norm": "full", "clip": 8.0},
        "block": {"kind": "output"},
        "head": {"kind": "lm", "scale": 0.5},
    },
    "neox": {"block": {"kind": "parallel"}, "norm": {"kind": "layer"}, "mlp": {"kind": "mlp", "activation": "relu2"}},
    "gptj": {"block": {"kind": "parallel", "shared_norm": True}, "norm": {"kind": "layer"}, "stochastic_depth": 0.2},
    "bloom": {"position": {"kind": "alibi"}, "embedding": {"norm": True}, "norm": {"kind": "layer"}},
    "t5 decoder": {"position": {"kind": "relative"}, "mlp": {"kind": "glu", "activation": "relu", "bias": True}},
    "electra": BERT | {"embedding": {"norm": True, "types": 2, "width": 16, "bias": True, "projected": "last"}},
    "opt": GPT2 | {"embedding": {"width": 16}, "mlp": {"kind": "mlp", "activation": "relu"}},
    "oss": {"attention": {"kind": "full", "sinks": True}, "mlp": {"kind": "glu", "activation": "relu2"}},
    "scaled, further tokens": {"head": {"kind": "lm", "scale": 0.5}, "mtp": {"kind": "parallel", "depth": 2}},
    "narrow, further tokens": {"embedding": {"width": 16}, "mtp": {"kind": "sequential", "depth": 2}},
    "relu before tokens": {"kind": "encoder", "head": {"kind": "masked", "activation": "relu"}},
    "alibi, heads of two widths": {
        "position": {"kind": "alibi"},
        "first": [{"attention": {"kind": "full", "head_dim": 6}}],
    },
    "alibi, no scores": {"position": {"kind": "alibi"}, "attention": {"kind": "delta"}},
    "relative, no scores": {"position": {"kind": "relative"}, "attention": {"kind": "delta"}},
    "mixed": {"pattern": [{"attention": {"kind": "full", "window": 16}}, {"position": {"kind": "none"}}, {}]},
}
T5 = {
    "kind": "encoder_decoder",
    "encoder_layers": 2,
    "position": {"kind": "relative"},
    "mlp": {"kind": "mlp", "activation": "relu"},
    "head": {"kind": "lm", "scale": 0.5},
}
BART = GPT2 | {
    "kind": "encoder_decoder",
    "block": {"kind": "post"},
    "embedding": {"norm": True},
    "mlp": {"kind": "mlp", "activation": "gelu"},
    "head": {"kind": "lm", "bias": True},
}
PAIRS: dict[str, dict[str, Any]] = {"t5": T5, "bart": BART}
OTHER_PAIRS: dict[str, dict[str, Any]] = {
    "t5 v1.1": T5 | {"mlp": {"kind": "glu", "activation": "gelu_tanh"}, "head": {"kind": "lm", "tied": False}},
    "llama parts": {"kind": "encoder_decoder", "attention": {"kind": "full", "kv_heads": 2, "qk_norm": "head"}},
    "olmo parts": {
        "kind": "encoder_decoder",
        "attention": {"kind": "full", "qk_norm": "full", "clip": 8.0},
        "block": {"kind": "output"},
    },
    "sinks": {"kind": "encoder_decoder", "attention": {"kind": "full", "sinks": True}, "block": {"kind": "sandwich"}},
    "rows skip": BART | {"stochastic_depth": 0.2},
}
LATENT = {"kind": "latent", "query_rank": 24, "kv_rank": 16, "nope_dim": 8, "rope_dim": 4, "value_dim": 12}
EXPERTS = {"kind": "experts", "count": 4, "active": 2, "hidden": 40}
MIXTURES: dict[str, dict[str, Any]] = {
    "mixtral": {"attention": {"kind": "full", "kv_heads": 2}, "mlp": EXPERTS},
    "deepseek": {
        "attention": LATENT,
        "first": [{"mlp": {"kind": "glu", "hidden": 64}}],
        "mlp": EXPERTS | {"router": {"kind": "sigmoid", "groups": 2, "groups_active": 2}, "shared_hidden": 24},
    },
}
OTHER_MIXTURES: dict[str, dict[str, Any]] = {
    "switch": {"mlp": EXPERTS | {"active": 1, "router": {"kind": "switch"}}},
    "jitter and z-loss": {
        "mlp": EXPERTS | {"router": {"kind": "softmax", "renormalize": False, "jitter": 0.1}, "z_loss": 1e-3}
    },
    "no losses": {"mlp": EXPERTS | {"balance_loss": 0.0, "router": {"kind": "sigmoid", "renormalize": False}}},
    "latent": {"attention": LATENT | {"query_rank": None, "bias": True}},
    "latent, alibi": {"attention": LATENT, "position": {"kind": "alibi"}},
    "latent encoder": {"kind": "encoder", "attention": LATENT, "head": {"kind": "masked"}},
    "pairs of experts": {"kind": "encoder_decoder", "mlp": EXPERTS},
}
RECOMPUTE: dict[str, Any] = {
    "none": "none",
    "block": "block",
    "every second": {"kind": "block", "every": 2},
    "selective": "selective",
}


def make_engine(config: ModelConfig, recompute: Any, precision: str) -> Engine:
    model = build_model(config, VOCAB, "cpu")
    parallel = ParallelConfig.model_validate({"recompute": recompute})
    engine = parallelize(model, parallel, TrainConfig.model_validate({"precision": precision, "device": "cpu"}))
    initialize(model, config, seed=3)
    return engine


def make_source(rows: int, sequence: int) -> Source:
    tokens = torch.randint(0, VOCAB, (rows, sequence), generator=torch.Generator().manual_seed(6))
    return Source(tokens, torch.arange(sequence).repeat(rows, 1), [(sequence,)] * rows)


def make_batch(rows: int, sequence: int, masked: bool) -> Batch:
    generator = torch.Generator().manual_seed(5)
    weights = torch.ones(rows, sequence)
    if masked:
        weights[:, sequence // 4 :] = 0
    return Batch(
        tokens=torch.randint(0, VOCAB, (rows, sequence), generator=generator),
        targets=torch.randint(0, VOCAB, (rows, sequence), generator=generator),
        weights=weights,
        positions=torch.arange(sequence).repeat(rows, 1),
        document_lengths=[(sequence,)] * rows,
        samples=torch.arange(rows),
        sources=torch.zeros(rows, dtype=torch.int64),
    )


def labelled(batch: Batch, head: Any) -> Batch:
    """The batch with labels of some tokens, or of all, as the head takes them."""
    shape = batch.tokens.shape
    if head.kind == "span":
        return replace(batch, targets=torch.full(shape, START | END | CHOOSABLE))
    weights = torch.zeros(shape)
    weights[:, :: 1 if head.kind == "token_classification" else 5] = 1
    found = replace(batch, weights=weights, targets=batch.targets % len(getattr(head, "labels", "ab")))
    numbers = head.kind == "regression" or getattr(head, "multiple", False)
    return replace(found, values=torch.ones(*shape, head.outputs)) if numbers else found


def measured(engine: Engine, batch: Batch) -> int:
    """Bytes of all distinct memory that autograd packs, but for parameters'."""
    parameters = {each.untyped_storage().data_ptr() for each in engine.model.parameters()}
    kept: dict[int, Tensor] = {}  # a tensor in a table stays, so no other one gets its memory

    def pack(tensor: Tensor) -> Tensor:
        kept.setdefault(tensor.untyped_storage().data_ptr(), tensor)
        return tensor

    hooks = pack, lambda packed: packed
    for stack in engine.model.stacks():
        if stack.saving is Rebuilding:
            stack.saving = partial(Rebuilding, hooks)
    weight = float(batch.weights.sum())
    with torch.autograd.graph.saved_tensors_hooks(*hooks):
        hidden, auxiliary = engine.model(**engine.inputs(batch, torch.arange(len(batch.tokens))))
        terms = engine._terms(batch, hidden, auxiliary, torch.arange(len(batch.tokens)), 1 / weight)
        loss = sum(terms.values())
    assert isinstance(loss, Tensor)
    return sum(each.untyped_storage().nbytes() for address, each in kept.items() if address not in parameters)


def compare(
    part: dict[str, Any], recompute: Any, precision: str, shape: tuple[int, int], source: int | None = None
) -> None:
    config = ModelConfig.model_validate(SIZES | part)
    engine = make_engine(config, recompute, precision)
    batch = make_batch(*shape, masked=config.head.kind in ("masked", "replaced"))
    if config.head.kind == "replaced":
        batch = replace(batch, detection=Detection(torch.full((shape[0],), shape[1]), 0.25))
    elif not isinstance(config.head, LMHead | MaskedHead):
        batch = labelled(batch, config.head)
    if source is not None:
        batch = replace(batch, source=make_source(shape[0], source))
    rows = Rows(*shape, itemsize=4 if precision == "fp32" else 2, source=source)
    parallel = ParallelConfig.model_validate({"recompute": recompute})
    targets = int(batch.weights.count_nonzero())
    assert saved_bytes(config, VOCAB, rows, parallel.recompute, targets).total == measured(engine, batch)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("recompute", RECOMPUTE)
@pytest.mark.parametrize("family", FAMILIES)
def test_the_closed_form_is_what_autograd_keeps(family: str, recompute: str, precision: str) -> None:
    for shape in ((2, 48), (1, 32)):  # with weights side by side, and with too few tokens for it
        compare(FAMILIES[family], RECOMPUTE[recompute], precision, shape)


@pytest.mark.parametrize("recompute", ["none", "selective"])
@pytest.mark.parametrize("family", OTHERS)
def test_other_parts_know_what_they_keep(family: str, recompute: str) -> None:
    for precision in ("fp32", "bf16"):
        compare(OTHERS[family], RECOMPUTE[recompute], precision, (2, 48))


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("recompute", RECOMPUTE)
@pytest.mark.parametrize("family", PAIRS)
def test_encoder_decoders_keep_both_stacks_and_the_states_between_them(
    family: str, recompute: str, precision: str
) -> None:
    for shape, source in (((2, 48), 80), ((1, 32), 40), ((2, 80), 80)):
        compare(PAIRS[family], RECOMPUTE[recompute], precision, shape, source)


@pytest.mark.parametrize("recompute", ["none", "selective"])
@pytest.mark.parametrize("family", OTHER_PAIRS)
def test_other_parts_of_encoder_decoders(family: str, recompute: str) -> None:
    for precision in ("fp32", "bf16"):
        compare(OTHER_PAIRS[family], RECOMPUTE[recompute], precision, (2, 48), 72)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("recompute", RECOMPUTE)
@pytest.mark.parametrize("family", MIXTURES)
def test_experts_and_latents_know_what_they_keep(family: str, recompute: str, precision: str) -> None:
    for shape in ((2, 48), (1, 32)):
        compare(MIXTURES[family], RECOMPUTE[recompute], precision, shape)


@pytest.mark.parametrize("recompute", ["none", "selective"])
@pytest.mark.parametrize("family", OTHER_MIXTURES)
def test_other_experts_and_latents(family: str, recompute: str) -> None:
    source = 72 if OTHER_MIXTURES[family].get("kind") == "encoder_decoder" else None
    for precision in ("fp32", "bf16"):
        compare(OTHER_MIXTURES[family], RECOMPUTE[recompute], precision, (2, 48), source)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("recompute", RECOMPUTE)
def test_a_generator_keeps_its_own_stack_and_the_embedding_twice(recompute: str, precision: str) -> None:
    for head in (
        {"kind": "replaced"},
        {"kind": "replaced", "activation": "relu", "generator": {"kind": "smaller", "share": 1.0}},
    ):
        compare(BERT | {"head": head}, RECOMPUTE[recompute], precision, (2, 48))
    rotary = {"position": {"kind": "rope"}, "block": {"kind": "pre"}, "mlp": {"kind": "glu"}}
    compare(BERT | rotary | {"head": {"kind": "replaced"}}, RECOMPUTE[recompute], precision, (2, 48))


def test_blocks_that_are_computed_again_keep_no_angles_of_their_own() -> None:
    model = {"pattern": [{}, {"attention": {"kind": "latent", "rope_dim": 4}}, {}]}
    compare(model, RECOMPUTE["every second"], "fp32", (2, 48))


@pytest.mark.parametrize("source", [40, 56, 57, 58, 600])
def test_probabilities_across_are_kept_while_they_are_few(source: int) -> None:
    compare(T5, "none", "fp32", (2, 70), source)


@pytest.mark.parametrize("part", [{}, {"window": 70}, {"window": 700}])
@pytest.mark.parametrize("kind", ["decoder", "encoder"])
@pytest.mark.parametrize("sequence", [50, 100, 270, 600])
def test_probabilities_are_kept_while_they_are_few(part: dict[str, Any], kind: str, sequence: int) -> None:
    """Whole tiles of them; of long rows none."""
    attention = {"kind": "full", **part}
    model = {"kind": kind, "layers": 1, "attention": attention, "position": {"kind": "none"}}
    compare(model, "none", "fp32", (2, sequence))


def test_selective_keeps_less_than_none_and_more_than_block() -> None:
    config = ModelConfig.model_validate(SIZES | LLAMA)
    none, selective, block = (
        saved_bytes(config, VOCAB, Rows(4, 96, 4), ParallelConfig.model_validate({"recompute": kind}).recompute)
        for kind in ("none", "selective", "block")
    )
    assert block.blocks < selective.blocks < none.blocks / 2
    assert block.recomputed == none.blocks // 3


DELTA = {"kind": "delta", "key_heads": 2, "value_heads": 4, "key_dim": 6, "value_dim": 12, "convolution": 3}


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("recompute", ["none", "block", "selective"])
@pytest.mark.parametrize("part", [{"kind": "delta"}, DELTA], ids=["default", "sizes"])
def test_the_delta_rule_keeps_its_chunks(part: dict[str, Any], recompute: str, precision: str) -> None:
    """Of one chunk that is not full or is, of several, and of rows that lie behind each other."""
    for shape in ((2, 48), (1, 32), (2, 64), (3, 128), (1, 128), (2, 200)):
        compare({"attention": part, "layers": 2}, recompute, precision, shape)


@pytest.mark.parametrize("recompute", ["none", "selective"])
@pytest.mark.parametrize("kind", ["pre", "post", "parallel"])
def test_batch_norm_keeps_its_input_twice_over(kind: str, recompute: str) -> None:
    model = {"kind": "encoder", "norm": {"kind": "batch"}, "block": {"kind": kind}, "head": {"kind": "masked"}}
    for precision in ("fp32", "bf16"):
        compare(model, recompute, precision, (2, 48))


DENSE = {"kind": "dense"}
LABEL_HEADS: dict[str, dict[str, Any]] = {
    "classes": {"kind": "classification", "labels": ["a", "b", "c"]},
    "classes of any number": {"kind": "classification", "labels": ["a", "b", "c"], "multiple": True, "dropout": 0.1},
    "pooler": {"kind": "classification", "labels": ["a", "b"], "transform": DENSE},
    "dropped pooler": {"kind": "classification", "labels": ["a", "b"], "transform": DENSE, "dropout": 0.1},
    "modern": {
        "kind": "token_classification",
        "labels": ["a"],
        "transform": DENSE | {"activation": "gelu", "norm": True},
    },
    "tags": {"kind": "token_classification", "labels": ["a", "b", "c"], "dropout": 0.1},
    "numbers": {"kind": "regression", "outputs": 2, "transform": DENSE | {"norm": True}},
    "number": {"kind": "regression", "transform": DENSE | {"activation": "relu"}},
    "square": {"kind": "regression", "transform": DENSE | {"activation": "relu2", "bias": False}},
    "answers": {"kind": "span"},
    "answers behind a pooler": {"kind": "span", "transform": DENSE, "dropout": 0.1},
}


@pytest.mark.parametrize("norm", ["layer", "rms"])
@pytest.mark.parametrize("head", LABEL_HEADS)
def test_heads_of_labels_keep_what_they_read(head: str, norm: str) -> None:
    for kind, precision in (("encoder", "fp32"), ("decoder", "bf16")):
        model = {"kind": kind, "norm": {"kind": norm}, "head": LABEL_HEADS[head], "layers": 1}
        compare(model, "none", precision, (2, 48))


def test_parts_without_a_closed_form_say_so() -> None:
    config = ModelConfig.model_validate(SIZES | {"mlp": EXPERTS | {"capacity": 1.0}})
    with pytest.raises(UsageError, match="for backward"):
        saved_bytes(config, VOCAB, Rows(2, 48, 4), SelectiveRecompute())
