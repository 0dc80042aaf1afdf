"""Relations between tokens: what they are, that widths do not matter, and that only what is seen counts."""

import math

import pytest
import torch
from torch import Tensor

from hornbook.data.batch import Batch
from hornbook.data.config.teacher import RelationTeacher
from hornbook.model.build_model import build_model
from hornbook.model.config.model_config import ModelConfig
from hornbook.model.heads.relations import PAIRS, Watch, divergence, seen_tokens
from hornbook.model.init.init import initial_values
from hornbook.model.surgery.operate import fill
from hornbook.model.transformer import Transformer
from hornbook.parallel.gradients.live_teacher import LiveTeacher

VOCAB = 40
TOKENS = torch.randint(0, VOCAB, (2, 12), generator=torch.Generator().manual_seed(1))
LENGTHS = [(12,), (5, 7)]


def model_of(seed: int, **shape: object) -> Transformer:
    config = ModelConfig.model_validate(
        {"layers": 2, "width": 32, "heads": 4, "attention": {"kind": "full", "kv_heads": 2}, **shape}
    )
    stream = ((name, each * 2) for name, each in initial_values(build_model(config, VOCAB, "meta"), config, seed))
    return fill(build_model(config, VOCAB, "meta"), stream, None)


def looked(model: Transformer, layer: int = 1) -> dict[str, Tensor]:
    watch = Watch(model, layer, always=True)
    model(TOKENS, lengths=LENGTHS)
    return watch.take()


def test_queries_with_keys_are_where_the_layer_looks() -> None:
    """With the layer's own heads: the probabilities times the values are what its output projection reads."""
    model, read = model_of(0), list[Tensor]()
    attention = model.get_submodule("blocks.1.attention")
    attention.get_submodule("out").register_forward_hook(lambda _, given, __: read.append(given[0]))
    found = looked(model)
    model(TOKENS, lengths=LENGTHS)  # the watch took what it saw: nothing is kept twice
    query, key, value = (found[name].unflatten(2, (4, -1)).transpose(1, 2) for name in ("query", "key", "value"))
    seen = seen_tokens(LENGTHS, torch.device("cpu"))
    scores = (query @ key.mT / math.sqrt(8)).masked_fill(~seen[:, None], -math.inf)
    answers = (scores.softmax(-1) @ value).transpose(1, 2).flatten(2)
    torch.testing.assert_close(answers, read[0], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", PAIRS)
def test_the_divergence_is_that_of_the_formula_written_out(name: str) -> None:
    small, large = looked(model_of(1, width=16, heads=2)), looked(model_of(2, width=48, layers=3), 2)
    seen, heads = seen_tokens(LENGTHS, torch.device("cpu")), 4
    small, large = ({part: value.detach() for part, value in each.items()} for each in (small, large))
    found = divergence(small, large, [name], heads, seen)
    first, second = PAIRS[name]
    for row, start, token in ((0, 0, 7), (1, 0, 4), (1, 5, 9)):
        total = 0.0
        for head in range(heads):
            logs = []
            for each in (large, small):
                a, b = (each[part][row].chunk(heads, -1)[head] for part in (first, second))
                scores = [float(a[token] @ b[other]) / math.sqrt(a.shape[-1]) for other in range(start, token + 1)]
                logs.append(torch.tensor(scores).log_softmax(0))
            total += float((logs[0].exp() * (logs[0] - logs[1])).sum()) / heads
        assert float(found[row, token]) == pytest.approx(total, rel=1e-4, abs=1e-6)
    assert (found[:, 0] == 0).all()
    assert found[1, 5] == 0, "the first of a document sees itself alone"
    torch.testing.assert_close(divergence(small, small, [name], heads, seen), torch.zeros(2, 12), atol=1e-6, rtol=0)


@pytest.mark.parametrize(("layer", "layers", "pairs"), [(None, 2, [(0, 1), (1, 3)]), (3, 2, [(0, 1), (1, 2)])])
@pytest.mark.parametrize("kind", ["decoder", "encoder"])
def test_several_layers_learn_from_those_that_lie_as_deep(
    kind: str, layer: int | None, layers: int, pairs: list[tuple[int, int]]
) -> None:
    teacher, model = model_of(5, kind=kind, width=48, layers=4), model_of(6, kind=kind)
    config = RelationTeacher(path="x", of=["attention", "hidden"], layer=layer, layers=layers, heads=4, weight=3.0)
    live = LiveTeacher(teacher, model, config, torch.device("cpu"))
    weights = (torch.arange(24) % 3 > 0).view(2, 12).float()
    positions, numbers = torch.arange(12).expand(2, 12), torch.zeros(2, dtype=torch.int64)
    batch = Batch(TOKENS, TOKENS, weights, positions, LENGTHS, numbers, numbers)
    model.train()
    model(TOKENS, lengths=LENGTHS, positions=positions)
    found, expected = live.term(batch), torch.zeros(2, 12)
    seen = torch.ones(2, 12, 12, dtype=torch.bool)
    seen[1, :5, 5:] = seen[1, 5:, :5] = False
    seen = seen.tril() if kind == "decoder" else seen
    for ours, theirs in pairs:
        both = [Watch(each, number, always=True) for each, number in ((model, ours), (teacher, theirs))]
        for each in (model, teacher):
            each(TOKENS, lengths=LENGTHS, positions=positions)
        expected = expected + divergence(both[0].take(), both[1].take(), config.of, 4, seen)
    torch.testing.assert_close(found, 3.0 * (expected / len(pairs) * weights).sum())


def test_which_layers_are_compared() -> None:
    """Four layers and twelve are TinyBERT's map; the last one learns from the last, or from the one that is named."""
    assert RelationTeacher(path="x", layers=4).pairs(4, 12) == [(0, 2), (1, 5), (2, 8), (3, 11)]
    assert RelationTeacher(path="x", layers=2, layer=7).pairs(5, 12) == [(2, 3), (4, 6)]
    assert RelationTeacher(path="x").pairs(5, 12) == [(4, 11)]


def test_gradients_reach_the_model_that_is_compared_and_evaluations_are_not_watched() -> None:
    teacher, model = looked(model_of(3, width=48)), model_of(4)
    watch, seen = Watch(model, 1), seen_tokens(LENGTHS, torch.device("cpu"))
    model(TOKENS, lengths=LENGTHS)
    assert watch.take() == {}
    model.train()
    model(TOKENS, lengths=LENGTHS)
    theirs = {name: each.detach() for name, each in teacher.items()}
    divergence(watch.take(), theirs, list(PAIRS), 4, seen).sum().backward()
    for name in ("blocks.1.attention.query.weight", "blocks.0.mlp.up.weight", "blocks.1.mlp.down.weight"):
        assert model.get_parameter(name).grad.abs().sum() > 0  # pyright: ignore
    assert watch.take() == {}
