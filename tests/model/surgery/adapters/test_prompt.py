"""A soft prompt takes positions: texts that go on have so many fewer."""

import pytest
import torch

from hornbook.model.build_model import build_model
from hornbook.model.config.model_config import ModelConfig
from hornbook.model.config.position_config import LearnedPositionsConfig, PositionConfig, RopeConfig
from hornbook.model.config.surgery_config import PromptConfig
from hornbook.model.generate.generate import generate
from hornbook.model.init.init import initial_values
from hornbook.model.surgery.adapters.prompt import prompt_length
from hornbook.model.surgery.operate import fill, operate
from hornbook.model.transformer import Transformer

VOCAB, POSITIONS, LENGTH = 32, 16, 4


def prompted(position: PositionConfig, length: int = LENGTH) -> Transformer:
    config = ModelConfig(layers=1, width=16, heads=2, position=position)
    model = build_model(config, VOCAB, "meta")
    if length:
        operate(model, [PromptConfig(length=length)])
    return fill(model, initial_values(build_model(config, VOCAB, "meta"), config, 1), None)


@pytest.mark.parametrize("position", [LearnedPositionsConfig(length=POSITIONS), RopeConfig(length=POSITIONS)])
@pytest.mark.parametrize("given", [POSITIONS - LENGTH, POSITIONS - LENGTH + 1, POSITIONS])
def test_a_long_text_goes_on_from_what_fits_behind_the_prompt(position: PositionConfig, given: int) -> None:
    model, tokens = prompted(position), list(range(1, given + 1))
    seen: list[int] = []
    for block in model.blocks.values():
        block.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].shape[1]))
    (chosen,) = generate(model, tokens, max_tokens=1, greedy=True, length=POSITIONS)
    room = POSITIONS - LENGTH
    kept = tokens if given <= room else tokens[-(room // 2) :]
    assert seen == [len(kept) + LENGTH]
    with torch.no_grad():
        hidden, _ = model(torch.tensor([kept]))
        assert model.head is not None
        assert chosen == int(model.head.logits(hidden[0, -1]).argmax())


def test_a_text_grows_past_the_positions() -> None:
    model, seen = prompted(LearnedPositionsConfig(length=POSITIONS)), []
    for block in model.blocks.values():
        block.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].shape[1]))
    assert len(list(generate(model, [1, 2, 3], max_tokens=30, greedy=True))) == 30
    again = (POSITIONS - LENGTH) // 2 + LENGTH
    assert seen[0] == 3 + LENGTH
    assert {size for size in seen[1:] if size > 1} == {again}


def test_its_length_is_known() -> None:
    assert [prompt_length(prompted(RopeConfig(length=8), length)) for length in (0, 5)] == [0, 5]
