"""Samples of text during a run: an encoder's are filled masks."""

import re
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from hornbook.model.build_model import build_model
from hornbook.model.config.head_config import MaskedHead
from hornbook.model.config.model_config import ModelConfig
from hornbook.model.init.init import initialize
from hornbook.run.observe.evaluation import Samples
from hornbook.text.config.text import BPE
from hornbook.text.tokenizer.train import train_tokenizer


@pytest.mark.parametrize(
    ("prompt", "pattern"),
    [
        ("the", r"sample the \[MASK\]: \S* \d%, \S* \d%, \S* \d%"),
        ("[MASK] <|mask|>", r"sample \[MASK\] <\|mask\|>: \S* \d%, \S* \d%, \S* \d%; \S* \d%, \S* \d%, \S* \d%"),
    ],
)
def test_an_encoder_fills_masks_of_the_prompt_or_one_at_its_end(prompt: str, pattern: str) -> None:
    tokenizer = train_tokenizer(BPE(vocab=300, objectives=["masked"]), [["the letters of the page"] * 9])
    config = ModelConfig(kind="encoder", layers=1, width=16, heads=2, head=MaskedHead())
    model = build_model(config, tokenizer.vocab_size, "cpu")
    initialize(model, config, seed=1)
    said, written = list[str](), list[dict[str, Any]]()
    recipe = SimpleNamespace(
        eval=SimpleNamespace(sample_every=0, every=0, prompt=prompt),
        model=config,
        parallel=SimpleNamespace(pipeline=SimpleNamespace(stages=1)),
    )
    job = SimpleNamespace(
        recipe=recipe,
        inputs=SimpleNamespace(tokenizer=tokenizer),
        output=SimpleNamespace(write_json=lambda _, record: written.append(record)),
        run=SimpleNamespace(samples=Path("samples")),
    )
    engine = SimpleNamespace(weights_to_evaluate=nullcontext, evaluation_mode=lambda: nullcontext(model.eval()))
    samples = Samples(cast("Any", job), cast("Any", engine), [cast("Any", SimpleNamespace(note=said.append))])
    samples(cast("Any", SimpleNamespace(step=3, attempt=1, tokens=9, final=True)))
    (line,) = said
    assert re.fullmatch(pattern, line), line
    assert line == f"sample {written[0]['prompt']}{written[0]['text']}"
