"""Texts of different lengths in one cache: each goes on as it does alone, whatever kinds of layers there are."""

import random

import pytest
import torch
from torch import Tensor

from hornbook.model.attention.batch_cache import BatchCache
from hornbook.model.attention.key_value_cache import KVCache
from hornbook.model.build_model import build_model
from hornbook.model.config.attention_config import DeltaAttentionConfig, FullAttentionConfig, LatentAttentionConfig
from hornbook.model.config.mlp_config import ExpertsConfig
from hornbook.model.config.model_config import ModelConfig
from hornbook.model.config.position_config import (
    AlibiConfig,
    LearnedPositionsConfig,
    RelativeBucketsConfig,
    RopeConfig,
    SinusoidalPositionsConfig,
)
from hornbook.model.config.surgery_config import PrefixConfig, PromptConfig
from hornbook.model.generate.generate import next_logits
from hornbook.model.init.init import initial_values
from hornbook.model.surgery.adapters.prompt import prompt_length
from hornbook.model.surgery.operate import fill, operate
from hornbook.model.transformer import Transformer

VOCAB, LENGTH = 60, 160
SHAPE = {"layers": 2, "width": 32, "heads": 4}
FULL = FullAttentionConfig
ROPE = RopeConfig(length=LENGTH)
CONFIGS = {
    "learned": ModelConfig(**SHAPE, position=LearnedPositionsConfig(length=LENGTH)),
    "sinusoidal": ModelConfig(**SHAPE, position=SinusoidalPositionsConfig(length=LENGTH)),
    "grouped": ModelConfig(**SHAPE, position=ROPE, attention=FULL(kv_heads=2)),
    "window": ModelConfig(**SHAPE, position=ROPE, attention=FULL(window=7)),
    "softcap": ModelConfig(**SHAPE, position=ROPE, attention=FULL(softcap=5.0, sinks=True, window=20)),
    "alibi": ModelConfig(**SHAPE, position=AlibiConfig(length=LENGTH)),
    "relative": ModelConfig(**SHAPE, position=RelativeBucketsConfig(length=LENGTH), attention=FULL(softcap=9.0)),
    "latent": ModelConfig(
        **SHAPE,
        position=ROPE,
        attention=LatentAttentionConfig(query_rank=12, kv_rank=10, nope_dim=6, rope_dim=4, value_dim=6),
    ),
    "delta": ModelConfig(**SHAPE, position=ROPE, attention=DeltaAttentionConfig(key_dim=8, value_dim=8)),
    "experts": ModelConfig(**SHAPE, position=ROPE, mlp=ExpertsConfig(count=4, active=2, hidden=16, capacity=0.5)),
}


BEFORE = {"prompted": PromptConfig(length=3), "prefixed": PrefixConfig(length=3)}


def prompted(kind: str) -> Transformer:
    """With a soft prompt, or a prefix, before every text."""
    config = CONFIGS["grouped"]
    model = build_model(config, VOCAB, "meta")
    operate(model, [BEFORE[kind]])
    return fill(model, initial_values(build_model(config, VOCAB, "meta"), config, 1), None).eval()


@pytest.fixture(params=[*CONFIGS, *BEFORE])
def model(request: pytest.FixtureRequest, random_model) -> Transformer:
    """In float64, in which what is wrong differs from what is rounded otherwise."""
    made = prompted(request.param) if request.param in BEFORE else random_model(CONFIGS[request.param], VOCAB, 3)
    made.compute_dtype = torch.float64
    return made.double()


def step(model: Transformer, cache: BatchCache, tokens: list[int]) -> Tensor:
    with torch.no_grad():
        hidden, _ = model(torch.tensor(tokens)[:, None], positions=cache.positions(), cache=cache)
        assert model.head is not None
        return model.head.logits(hidden[:, -1])


def test_each_text_goes_on_as_it_does_alone(model: Transformer) -> None:
    """Texts join with prompts of 1 to 90 tokens and leave again, in 60 steps; the reference has a cache for each."""
    draw, cache = random.Random(4), BatchCache(4, LENGTH)
    alone: list[KVCache] = []
    sizes = []
    for _ in range(60):
        if len(alone) < 4 and draw.random() < 0.3:
            prompt, known = [draw.randrange(VOCAB) for _ in range(draw.choice((1, 2, 17, 63, 64, 90)))], KVCache()
            next_logits(model, prompt, known)
            assert cache.join(known) == len(alone)
            alone.append(known)
        leaving = [row for row in range(len(alone)) if draw.random() < 0.1 or alone[row].length == LENGTH]
        for row in reversed(leaving):
            cache.leave(row)
            alone[row] = alone[-1]
            alone.pop()
        sizes.append(len(alone))
        if alone:
            tokens = [draw.randrange(VOCAB) for _ in alone]
            found = step(model, cache, tokens)
            expected = torch.stack(
                [next_logits(model, [token], each) for token, each in zip(tokens, alone, strict=True)]
            )
            assert float((found - expected).abs().max()) <= 1e-5 * float(expected.abs().max())
        assert cache.lengths == [each.length for each in alone]
    assert {0, 1, 2, 3, 4} == set(sizes)


def test_prompts_that_are_read_together_go_on_as_those_read_alone(model: Transformer) -> None:
    draw, ahead = random.Random(2), prompt_length(model)
    prompts = [[draw.randrange(VOCAB) for _ in range(size)] for size in (1, 30, 2, 63, 17)]
    packed, cache, alone = KVCache(), BatchCache(8, LENGTH), [KVCache() for _ in prompts]
    sizes = [len(each) for each in prompts]
    with torch.no_grad():
        model(torch.tensor([[token for each in prompts for token in each]]), lengths=[sizes], cache=packed)
    if packed.states():
        with pytest.raises(AssertionError, match="recurrent"):
            packed.divided(sizes)
        return
    for each in packed.divided([ahead + size for size in sizes]):
        cache.join(each)
    for prompt, each in zip(prompts, alone, strict=True):
        next_logits(model, prompt, each)
    for _ in range(3):
        tokens = [draw.randrange(VOCAB) for _ in prompts]
        found = step(model, cache, tokens)
        expected = torch.stack([next_logits(model, [token], each) for token, each in zip(tokens, alone, strict=True)])
        assert float((found - expected).abs().max()) <= 1e-5 * float(expected.abs().max())
    assert cache.lengths == [each.length for each in alone]


def test_a_row_is_the_same_bits_whatever_stands_beside_it(random_model) -> None:
    """By a kernel that takes at least four rows on one thread, which is what is asked for here."""
    model, draw = random_model(CONFIGS["grouped"], VOCAB, 3), random.Random(1)

    def text(length: int) -> KVCache:
        known = KVCache()
        next_logits(model, [draw.randrange(VOCAB) for _ in range(length)], known)
        return known

    first = text(30)
    results = []
    for others in ((5, 6, 7), (60, 1, 30, 100, 150), (9, 9, 9, 9, 9, 9, 9)):
        cache = BatchCache(8, LENGTH)
        for each in (first, *map(text, others)):
            cache.join(each)
        found = [step(model, cache, [7] * (len(others) + 1))[0] for _ in range(5)]
        results.append(torch.stack(found))
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


def test_buffers_grow_to_the_capacity_and_hold_what_was_there(random_model) -> None:
    model = random_model(CONFIGS["grouped"], VOCAB, 3)
    cache, known = BatchCache(2, LENGTH), KVCache()
    next_logits(model, [1], known)
    cache.join(known)
    widths = set()
    for _ in range(LENGTH - 1):
        found, expected = step(model, cache, [5])[0], next_logits(model, [5], known)
        assert float((found - expected).abs().max()) <= 2e-5 * float(expected.abs().max())
        widths.add(cache._buffers[0][0].shape[2])
    assert widths == {64, 128, 192}
    for _ in range(192 - LENGTH):
        step(model, cache, [5])
    with pytest.raises(AssertionError, match="there are 192"):
        step(model, cache, [5])


def test_positions_are_where_the_states_of_a_model_without_keys_are() -> None:
    """`meta` stands for a GPU."""
    cache, known = BatchCache(2, LENGTH), KVCache()
    known.remember(0, 5, (torch.empty(1, 3, device="meta"),))
    known.advance(5)
    cache.join(known)
    assert cache.positions().device.type == "meta"
    assert cache.lengths == [5]


def test_no_more_texts_join_than_there_are_rows(random_model) -> None:
    cache, known = BatchCache(1, 8), KVCache()
    next_logits(random_model(CONFIGS["grouped"], VOCAB, 3), [1], known)
    cache.join(known)
    with pytest.raises(AssertionError, match="every row is taken"):
        cache.join(known)
