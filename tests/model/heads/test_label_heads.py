"""Heads for labels: their losses by definition, and the same for any cut of the data into rows and microbatches."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from pydantic import ValidationError
from torch import Tensor

from hornbook.model.build_model import build_model, parameter_roles
from hornbook.model.config.attention_config import FullAttentionConfig
from hornbook.model.config.head_config import (
    ClassificationHead,
    DenseTransform,
    RegressionHead,
    SpanHead,
    TokenClassificationHead,
)
from hornbook.model.config.mlp_config import PlainMLPConfig
from hornbook.model.config.model_checks import model_problems
from hornbook.model.config.model_config import ModelConfig
from hornbook.model.config.norm_config import LayerNormConfig
from hornbook.model.config.parameter_count import count_parameters
from hornbook.model.heads.label_heads import CHOOSABLE, END, START, LabelHead
from hornbook.model.init.init import initialize
from hornbook.model.layers.dropout import row_keys
from hornbook.model.transformer import Transformer

VOCAB, WIDTH, LABELS = 41, 16, ["a", "b", "c"]
HEADS: dict[str, Any] = {
    "classification": ClassificationHead(labels=LABELS, transform=DenseTransform()),
    "multiple": ClassificationHead(labels=LABELS, multiple=True),
    "regression": RegressionHead(outputs=2, bias=False),
    "tokens": TokenClassificationHead(
        labels=LABELS, transform=DenseTransform(activation="gelu", bias=False, norm=True)
    ),
    "span": SpanHead(),
}
DOCUMENTS = [9, 1, 14, 6, 3, 11, 17, 2, 5]
"""Their lengths; some labels of a text sit on its first token, some on its last."""


def model_of(head: Any, dropout: float = 0.0, kind: str = "encoder") -> Transformer:
    head = head.model_copy(update={"dropout": dropout})
    cfg = ModelConfig.model_validate(
        {
            "kind": kind,
            "layers": 2,
            "width": WIDTH,
            "heads": 2,
            "norm": LayerNormConfig(),
            "head": head,
            "dropout": dropout,
        }
    )
    model = build_model(cfg, VOCAB, "cpu")
    initialize(model, cfg, 3)
    with torch.no_grad():
        for parameter in model.head.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    return model


class Document(NamedTuple):
    tokens: Tensor
    targets: Tensor
    weights: Tensor


def document(head: Any, length: int, seed: int) -> Document:
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, VOCAB, (length,), generator=generator)
    weights = torch.zeros(length)
    if head.kind == "token_classification":
        weights = (torch.rand(length, generator=generator) < 0.6).float()
    else:
        weights[0 if head.kind == "span" or seed % 2 else -1] = 1.0
    if head.kind == "span":
        first, last = sorted(torch.randint(0, length, (2,), generator=generator).tolist())
        targets = CHOOSABLE * (torch.rand(length, generator=generator) < 0.7).long()
        targets[first] |= START
        targets[last] |= END
    elif head.kind == "regression" or getattr(head, "multiple", False):
        targets = (torch.rand(length, head.outputs, generator=generator) < 0.5).float()
    else:
        targets = torch.randint(0, head.outputs, (length,), generator=generator)
    return Document(tokens, targets, weights)


def documents(head: Any) -> list[Document]:
    return [document(head, length, seed) for seed, length in enumerate(DOCUMENTS)]


def row(parts: list[Document], size: int) -> tuple[Document, tuple[int, ...]]:
    """Documents one after the other, and padding that carries nothing."""
    found = Document(*(torch.cat(each) for each in zip(*parts, strict=True)))
    rest = size - len(found.tokens)
    padded = Document(*(F.pad(each, (*[0] * (2 * each.dim() - 1), rest)) for each in found))
    return padded, (*(len(part.tokens) for part in parts), *([rest] if rest else []))


def losses(
    model: Transformer, rows: list[tuple[Document, tuple[int, ...]]], samples: list[int] | None = None
) -> Tensor:
    """The weighted sum over a microbatch; samples key the dropout."""
    tokens, targets, weights = (torch.stack(each) for each in zip(*(each for each, _ in rows), strict=True))
    lengths = [each for _, each in rows]
    keys = None if samples is None else row_keys(7, 5, torch.tensor(samples))
    hidden, _ = model(tokens, None, lengths, keys)
    return model.head.losses(hidden, targets, weights, lengths=lengths, keys=keys)["loss"]


def gradients(model: Transformer, parts: Iterator[Tensor], total: float) -> tuple[float, dict[str, Tensor]]:
    model.zero_grad()
    value = 0.0
    for loss in parts:
        (loss / total).backward()
        value += float(loss.detach()) / total
    assert all(parameter.grad is not None for parameter in model.parameters())
    return value, {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


def assert_same(found: tuple[float, dict[str, Tensor]], wanted: tuple[float, dict[str, Tensor]]) -> None:
    assert found[0] == pytest.approx(wanted[0], rel=1e-6)
    largest = max(float(each.abs().max()) for each in wanted[1].values())
    for name, each in wanted[1].items():
        assert float((found[1][name] - each).abs().max()) < 1e-6 * max(largest, 1.0), name


@pytest.fixture(params=HEADS)
def head(request: pytest.FixtureRequest) -> Any:
    return HEADS[request.param]


def test_ragged_microbatches_equal_one_big_batch(head: Any) -> None:
    """With dropout on: it is keyed by sample and place."""
    model, docs = model_of(head, dropout=0.2).train(), documents(head)
    rows = [row(docs[i : i + 2], 32) for i in range(0, 8, 2)] + [row(docs[8:], 32)]
    total = float(sum(each.weights.sum() for each in docs))
    whole = gradients(model, iter([losses(model, rows, list(range(5)))]), total)
    cuts = ([0], [1, 2, 3], [4])
    ragged = gradients(model, (losses(model, [rows[i] for i in cut], list(cut)) for cut in cuts), total)
    assert_same(ragged, whole)


def test_packed_documents_equal_documents_alone(head: Any) -> None:
    model, docs = model_of(head).train(), documents(head)
    total = float(sum(each.weights.sum() for each in docs))
    packed = [row(docs[:3], 32), row(docs[3:7], 40)]
    rest = [row([each], len(each.tokens)) for each in docs[7:]]
    together = gradients(model, (losses(model, [each]) for each in [*packed, *rest]), total)
    alone = gradients(model, (losses(model, [row([each], len(each.tokens))]) for each in docs), total)
    assert_same(together, alone)


def test_no_document_sees_another(head: Any) -> None:
    """The Jacobian of one document's losses by the vectors of another is zero."""
    model, docs = model_of(head), documents(head)
    (found, lengths), vectors = row(docs[:3], 30), []
    model.embedding.register_forward_hook(lambda _module, _inputs, out: vectors.append(out.requires_grad_()))
    for number, (begin, size) in enumerate(((0, 9), (9, 1), (10, 14))):
        weights = torch.zeros(30)
        weights[begin : begin + size] = found.weights[begin : begin + size]
        (gradient,) = torch.autograd.grad(losses(model, [(found._replace(weights=weights), lengths)]), vectors[-1])
        seen = gradient[0].abs().sum(1) > 0
        if weights.sum() and number != 1:
            assert bool(seen[begin : begin + size].any())
        seen[begin : begin + size] = False
        assert not bool(seen.any())


def naive(head: Any, outputs: Tensor, targets: Tensor) -> Tensor:
    """Loss of one label by the formula, in double."""
    if head.kind == "regression":
        return ((outputs - targets) ** 2).mean()
    if getattr(head, "multiple", False):
        p = 1 / (1 + torch.exp(-outputs))
        return -(targets * p.log() + (1 - targets) * (1 - p).log()).mean()
    return -torch.log(outputs.exp()[targets] / outputs.exp().sum())


@torch.no_grad()
def test_losses_are_what_the_formulas_say(head: Any) -> None:
    model, (found, lengths) = model_of(head).eval(), row(documents(head)[:4], 32)
    hidden, _ = model(found.tokens[None], None, [lengths])
    outputs, each = model.head.logits(hidden)[0].double(), torch.zeros(32, dtype=torch.float64)
    if head.kind == "span":
        for piece, bits, begin in zip(
            outputs.split(lengths), found.targets.split(lengths), (0, 9, 10, 24), strict=False
        ):
            chances = [piece[bits > 0, side].log_softmax(0) for side in (0, 1)]
            first, last = (int((bits[bits > 0] & bit).argmax()) for bit in (START, END))
            each[begin] = -(chances[0][first] + chances[1][last]) / 2
    else:
        for place in found.weights.nonzero().flatten().tolist():
            each[place] = naive(head, outputs[place], found.targets[place])
    whole = model.head.losses(hidden, found.targets[None], found.weights[None], lengths=[lengths])["loss"]
    assert whole.dtype == torch.float32
    assert float(whole) == pytest.approx(float(each.sum()), rel=1e-5)
    by_token = model.head.token_losses(hidden, found.targets[None], found.weights[None], [lengths])
    torch.testing.assert_close(by_token[0].double(), each, atol=1e-5, rtol=1e-5)
    halved = model.head.losses(hidden, found.targets[None], 0.5 * found.weights[None], lengths=[lengths])["loss"]
    assert float(halved) == pytest.approx(0.5 * float(whole), rel=1e-6)


def test_smoothing_is_torchs() -> None:
    head = model_of(HEADS["classification"]).head
    hidden = torch.randn(1, 5, WIDTH, generator=torch.Generator().manual_seed(0))
    targets = torch.tensor([[0, 1, 2, 0, 1]])
    wanted = F.cross_entropy(head.logits(hidden)[0], targets[0], reduction="sum", label_smoothing=0.2)
    torch.testing.assert_close(head.losses(hidden, targets, torch.ones(1, 5), smoothing=0.2)["loss"], wanted)


def test_a_microbatch_without_labels_has_gradients_of_zero(head: Any) -> None:
    model = model_of(head)
    found, lengths = row(documents(head)[:2], 16)
    loss = losses(model, [(found._replace(weights=torch.zeros(16)), lengths)])
    loss.backward()
    assert float(loss.detach()) == 0
    assert all(p.grad is not None and not p.grad.any() for p in model.parameters())


def test_an_answer_is_not_looked_for_where_it_cannot_be() -> None:
    """Scores of tokens that cannot be chosen change nothing."""
    head = model_of(HEADS["span"]).head
    hidden = torch.randn(1, 6, WIDTH, generator=torch.Generator().manual_seed(0))
    targets, weights = torch.tensor([[0, START, CHOOSABLE, END, 0, CHOOSABLE]]), torch.tensor([[1.0, 0, 0, 0, 0, 0]])
    before = head.losses(hidden, targets, weights)["loss"]
    hidden[0, [0, 4]] += 9
    assert torch.equal(head.losses(hidden, targets, weights)["loss"], before)
    hidden[0, 5] += 9
    assert not torch.equal(head.losses(hidden, targets, weights)["loss"], before)


@torch.no_grad()
def test_dropout_follows_sample_and_place_and_keeps_the_mean(monkeypatch: pytest.MonkeyPatch) -> None:
    head = model_of(RegressionHead(), dropout=0.25).head
    assert isinstance(head, LabelHead)
    torch.nn.init.ones_(head.weight)
    torch.nn.init.zeros_(head.bias)
    hidden, weights = torch.ones(64, 50, WIDTH), torch.ones(64, 50)
    keys = row_keys(1, 2, torch.arange(64))
    outputs: list[Tensor] = []

    def record(found: Tensor, *_: Any) -> Tensor:
        outputs.append(found.flatten())
        return outputs[-1]

    monkeypatch.setattr(head, "label_losses", record)
    head.losses(hidden, torch.zeros(64, 50, 1), weights, keys=keys)
    head.losses(hidden[9:], torch.zeros(55, 50, 1), weights[9:] * (torch.arange(50) > 30), keys=keys[9:])
    kept = outputs[0] / WIDTH
    assert float(kept.mean()) == pytest.approx(1, abs=5 * (0.25 / 0.75 / (64 * 50 * WIDTH)) ** 0.5)
    assert torch.equal(outputs[1], outputs[0].view(64, 50)[9:, 31:].flatten())


def test_outputs_are_float32_whatever_the_stack_computes_in(head: Any) -> None:
    model = model_of(head)
    hidden = torch.randn(2, 3, WIDTH).bfloat16()
    if not getattr(head.transform, "norm", False):
        assert model.head.logits(hidden).dtype == torch.float32


def test_parameters_are_counted_and_begin_small(head: Any) -> None:
    for attention in (FullAttentionConfig(), FullAttentionConfig(bias=True)):
        cfg = ModelConfig(
            layers=2, width=WIDTH, heads=2, attention=attention, mlp=PlainMLPConfig(), norm=LayerNormConfig(), head=head
        )
        model = build_model(cfg, VOCAB, "cpu")
        assert count_parameters(cfg, VOCAB) == sum(each.numel() for each in model.parameters())
        initialize(model, cfg, 1)
        assert 0.01 < float(model.head.weight.detach().std()) < 0.03
        roles = parameter_roles(model)
        assert roles["head.weight"] == "head"
        assert roles.get("head.bias", "vector") == "vector"
        assert ModelConfig.model_validate_json(cfg.model_dump_json()) == cfg


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: ClassificationHead(labels=["a", "b", "a"]), "the label 'a' is there twice"),
        (lambda: TokenClassificationHead(labels=["O", "O"]), "the label 'O' is there twice"),
        (lambda: RegressionHead(outputs=0), "greater than or equal to 1"),
    ],
)
def test_labels_that_make_no_sense_are_refused(make: Callable[[], Any], text: str) -> None:
    with pytest.raises(ValidationError, match=text):
        make()


@pytest.mark.parametrize(
    ("changes", "key", "text"),
    [
        ({"head": ClassificationHead(labels=["a"])}, "model.head.labels", "one label alone leaves nothing"),
        ({"head": TokenClassificationHead(labels=["O"])}, "model.head.labels", "one label alone leaves nothing"),
        ({"kind": "encoder_decoder", "head": SpanHead()}, "model.head.kind", "writes its answers as text"),
        (
            {"norm": {"kind": "batch"}, "kind": "encoder", "head": SpanHead(transform=DenseTransform(norm=True))},
            "model.head.transform.norm",
            "cannot stand behind the few tokens",
        ),
    ],
)
def test_heads_that_do_not_fit_the_model_are_named(changes: dict[str, Any], key: str, text: str) -> None:
    found = dict(model_problems(ModelConfig.model_validate({"layers": 1, "width": 16, "heads": 2} | changes)))
    assert text in found[key]
