"""Trained keys and values before documents, beside a model whose cache holds the same ones."""

import pytest
import torch

from hornbook.errors import UsageError
from hornbook.model.attention.attention import FullAttention
from hornbook.model.attention.key_value_cache import KVCache
from hornbook.model.build_model import build_model
from hornbook.model.config.attention_config import FullAttentionConfig
from hornbook.model.config.model_config import ModelConfig
from hornbook.model.config.surgery_config import PrefixConfig
from hornbook.model.generate.generate import generate
from hornbook.model.surgery.adapters.prefix import without_network
from hornbook.model.surgery.adapters.prompt import prompt_length
from hornbook.model.surgery.added_values import added_parameters
from hornbook.model.surgery.operate import build_operated, fill, operate
from hornbook.model.transformer import Transformer
from tests.model.surgery.conftest import CONFIGS, VOCAB, Operated, ids, logits, spoil

LENGTH = 3
PREFIX, NETWORK = PrefixConfig(length=LENGTH), PrefixConfig(length=LENGTH, hidden=6)


def held(model: Transformer, rows: int) -> KVCache:
    """A cache of the model's prefixes."""
    cache, states = KVCache(), None if model.prefix is None else model.prefix(ids(1, 1)).states
    for block in model.blocks.values():
        attention = block.attention
        assert isinstance(attention, FullAttention)
        assert attention.prefix is not None
        pair = (each.unflatten(-1, (-1, 8)).transpose(0, 1) for each in attention.prefix.pair(states))
        cache.append(attention.layer, *(each.expand(rows, -1, -1, -1) for each in pair))
    cache.advance(LENGTH)
    return cache


@pytest.mark.parametrize("base", CONFIGS)
@pytest.mark.parametrize("step", [PREFIX, NETWORK])
@torch.no_grad()
def test_every_token_sees_keys_and_values_as_if_a_cache_held_them(
    operated: Operated, base: str, step: PrefixConfig
) -> None:
    model, plain, tokens = spoil(operated(base, step), size=0.5), operated(base), ids(time=20)
    assert plain.head is not None
    expected = plain.head.logits(plain(tokens, cache=held(model, 2))[0])
    torch.testing.assert_close(logits(model, tokens), expected, atol=1e-5, rtol=1e-5)
    assert not torch.allclose(expected, logits(plain, tokens), atol=0.05)


@torch.no_grad()
def test_documents_of_a_row_have_it_each(operated: Operated) -> None:
    model, tokens = spoil(operated("llama", PREFIX), size=0.5), ids(time=40)
    found, _ = model(tokens, lengths=[(25, 15), (40,)])
    apart = [model(tokens[:1, :25])[0], model(tokens[:1, 25:])[0], model(tokens[1:])[0]]
    torch.testing.assert_close(found, torch.cat(apart, 1).view_as(found), atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_generating_with_a_cache_is_reading_the_whole_text(operated: Operated) -> None:
    model, text = spoil(operated("gpt2", NETWORK), size=0.5), [5, 9, 2]
    assert prompt_length(model) == LENGTH
    for token in generate(model, list(text), max_tokens=12, greedy=True):
        assert token == int(logits(model, torch.tensor([text]))[0, -1].argmax())
        text.append(token)
    assert len(text) == 15


def test_only_it_learns(operated: Operated) -> None:
    model = operated("llama", NETWORK)
    logits(model, ids()).square().sum().backward()
    learned = {name for name, each in model.named_parameters() if each.grad is not None and bool(each.grad.any())}
    assert learned == set(added_parameters(model))


@torch.no_grad()
def test_the_network_may_be_left_out_afterwards(operated: Operated) -> None:
    model: Transformer = spoil(operated("llama", NETWORK), size=0.5)
    steps, added = without_network((NETWORK,), {name: each.detach() for name, each in added_parameters(model).items()})
    assert steps == (PREFIX,)
    base = dict(operated("llama").named_parameters())
    again = fill(build_operated(CONFIGS["llama"], VOCAB, steps), base.items(), added)
    torch.testing.assert_close(logits(again, ids()), logits(model, ids()), atol=1e-6, rtol=1e-6)
    assert without_network(steps, added)[1].keys() == added.keys()


def test_layers_that_lose_sight_of_it_are_refused() -> None:
    config = ModelConfig(layers=2, width=16, heads=2, attention=FullAttentionConfig(window=8))
    with pytest.raises(UsageError, match=r"prefix: blocks\.0\.attention is no full attention .* take prompt, lora or"):
        operate(build_model(config, VOCAB), [PREFIX])
