"""Fixtures of the model's tests: models in which nothing is left at a value that hides a mistake."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from hornbook.model.build_model import build_model
from hornbook.model.config.model_config import ModelConfig
from hornbook.model.transformer import Transformer

RandomModel = Callable[..., Transformer]


@pytest.fixture(autouse=True)
def _one_thread(one_thread: None) -> None:
    """Tensors are small and tests run side by side: threads would spend their time waiting for one another."""


@pytest.fixture(scope="session")
def random_model() -> RandomModel:
    """`random_model(config, vocab, seed)`: every parameter random, logits of unit deviation."""
    return _random_model


def _random_model(config: ModelConfig, vocab: int, seed: int = 0) -> Transformer:
    generator = torch.Generator().manual_seed(seed)
    model = build_model(config, vocab, "cpu").eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            # Norms around 1 and the rest around 0, none exactly: a norm or bias that is ignored shows at once.
            center = 1.0 if "norm" in name and name.endswith("weight") else 0.0
            parameter.copy_(center + 0.3 * torch.randn(parameter.shape, generator=generator))
        ids = torch.randint(0, vocab, (2, 16), generator=generator)
        deviation = model.head.logits(model(ids)[0]).std()
        for parameter in () if model.norm is None else model.norm.parameters():
            parameter.div_(deviation)  # logits are linear in the last norm
    return model


@pytest.fixture(scope="session")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a trained byte-level tokenizer of 300 ids, which has merges inside and across characters."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(["the page says the letters, and \u00e9t\u00e9 \U0001f600 too"] * 9, trainer)
    folder = tmp_path_factory.mktemp("tokenizer")
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder
