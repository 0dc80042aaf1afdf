"""Beam search finds what transformers' finds, and what trying everything finds."""

import itertools
import math
from pathlib import Path

import pytest
import torch
import transformers

from hornbook.errors import UsageError
from hornbook.model.generate.beam import beam_search
from hornbook.model.generate.generate import generate
from hornbook.model.storage.load import load_model
from hornbook.model.transformer import Source

STOP = 5


def saved(folder: Path, kind: str, seed: int) -> tuple[transformers.PreTrainedModel, Path]:
    """A tiny model of transformers with sharp, random logits."""
    torch.manual_seed(seed)
    config, auto = CONFIGS[kind]
    model = auto.from_config(config)
    for name, parameter in model.named_parameters():
        torch.nn.init.normal_(parameter, std=1.0 if "norm" in name else 0.4)
    model.save_pretrained(folder / kind)
    return auto.from_pretrained(folder / kind).eval(), folder / kind


CONFIGS = {
    "gpt2": (
        transformers.GPT2Config(n_layer=2, n_embd=16, n_head=2, n_positions=32, vocab_size=23),
        transformers.AutoModelForCausalLM,
    ),
    "t5": (
        transformers.T5Config(
            d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2, vocab_size=23, decoder_start_token_id=0
        ),
        transformers.AutoModelForSeq2SeqLM,
    ),
    "bart": (
        transformers.BartConfig(
            d_model=16,
            encoder_layers=2,
            decoder_layers=2,
            encoder_attention_heads=2,
            decoder_attention_heads=2,
            encoder_ffn_dim=32,
            decoder_ffn_dim=32,
            vocab_size=23,
            max_position_embeddings=32,
            decoder_start_token_id=2,
            forced_eos_token_id=None,
        ),
        transformers.AutoModelForSeq2SeqLM,
    ),
}


@pytest.mark.parametrize("kind", CONFIGS)
@pytest.mark.parametrize(("beams", "penalty"), [(1, 1.0), (3, 1.0), (4, -0.5)])
def test_it_finds_what_transformers_finds(tmp_path: Path, kind: str, beams: int, penalty: float) -> None:
    for seed in range(2):
        theirs, folder = saved(tmp_path, kind, seed)
        loaded = load_model(folder)
        prompt, source = [7, 3, 11], [4, 9, 2, 17, 8]
        memory = None
        if kind != "gpt2":
            prompt = [theirs.config.decoder_start_token_id]
            with torch.no_grad():
                memory = loaded.model.encode(Source(torch.tensor([source])))
        found = theirs.generate(
            torch.tensor([prompt if memory is None else source]),
            num_beams=beams,
            length_penalty=penalty,
            max_new_tokens=9,
            do_sample=False,
            eos_token_id=STOP,
            pad_token_id=0,
            early_stopping=False,
        )[0, len(prompt) :].tolist()
        found = found[: found.index(STOP) + 1] if STOP in found else found
        if beams == 1:
            greedy = [*generate(loaded.model, prompt, max_tokens=9, greedy=True, stop=(STOP,), memory=memory)]
            assert greedy == [token for token in found if token != STOP]
        ours = beam_search(
            loaded.model, prompt, beams=beams, max_tokens=9, stop=(STOP,), length_penalty=penalty, memory=memory
        )
        assert ours[0].tokens == found


def test_enough_beams_find_the_best_of_all(tmp_path: Path) -> None:
    _, folder = saved(tmp_path, "gpt2", 1)
    model = load_model(folder).model
    vocab, prompt = 4, [7, 3]
    found = beam_search(model, prompt, beams=vocab**2, max_tokens=3, stop=(), vocab=vocab, length_penalty=0.0)
    scores = {}
    for text in itertools.product(range(vocab), repeat=3):
        with torch.no_grad():
            hidden, _ = model(torch.tensor([[*prompt, *text]]))
            likelihoods = model.head.logits(hidden[0]).log_softmax(-1)
        scores[text] = sum(float(likelihoods[len(prompt) - 1 + i, token]) for i, token in enumerate(text))
    best = max(scores, key=lambda text: scores[text])
    assert tuple(found[0].tokens) == best
    assert math.isclose(found[0].score, scores[best], rel_tol=1e-4)


def test_no_beam_is_refused(tmp_path: Path) -> None:
    _, folder = saved(tmp_path, "gpt2", 1)
    with pytest.raises(UsageError, match="at least one beam"):
        beam_search(load_model(folder).model, [1], beams=0, max_tokens=3, stop=())
