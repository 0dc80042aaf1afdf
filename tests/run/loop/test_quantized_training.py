"""What rounding costs a trained model, and what training with rounded weights gives back."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch

from hornbook.errors import Exit
from hornbook.model.storage.load import load_model
from hornbook.model.surgery.quantization.quantize import parse_format, quantize_model
from hornbook.model.transformer import Transformer
from hornbook.run.checkpoints.find_checkpoint import checkpoint_path
from hornbook.run.job.start.init_from import InitFrom

Launch = Callable[..., Exit]
SIZE = ("model.layers=2", "model.width=64", "model.heads=4", "train.batch_tokens=1024", "train.micro_batch=16")
LENGTH = ("train.sequence=64", "train.tokens=200k", "optim.schedule.warmup=10 steps", "checkpoint.every=0")
QAT = 'surgery=[{kind="fake_quant", bits=3, per="tensor", scales="%s"}]'
AGAIN = ("optim.lr=0.002", "train.tokens=60k")


class Scores(NamedTuple):
    """What a model gives to some tokens."""

    loss: float
    logs: torch.Tensor


@torch.no_grad()
def score(model: Transformer, corpus: Path, split: str) -> Scores:
    """Mean loss (nats) over 64 rows of 64 tokens of a split, and the log-probabilities."""
    tokens = np.fromfile(corpus / "tokens" / split / "prose" / "00000.bin", "<u2").astype(np.int64)
    count = min(len(tokens) // 65, 64)
    rows = torch.from_numpy(tokens[: count * 65].reshape(count, 65))
    assert model.head is not None
    logs = model.head.logits(model(rows[:, :-1])[0]).log_softmax(-1)
    return Scores(float(-logs.gather(2, rows[:, 1:, None]).mean()), logs)


def trained(folder: Path) -> Transformer:
    return load_model(checkpoint_path(folder)).model


@pytest.mark.slow
def test_int8_costs_next_to_nothing(tmp_path: Path, tiny_corpus: Path, launch_run: Launch) -> None:
    assert launch_run(tmp_path / "base", *SIZE, *LENGTH) == Exit.DONE
    dense = score(trained(tmp_path / "base"), tiny_corpus, "validation")
    lines = []
    for form, most in (("int8", 1e-3), ("int8-group32", 1e-3), ("int8-tensor", 5e-3), ("nf4", 0.1), ("int4", 0.1)):
        model = trained(tmp_path / "base")
        figures = quantize_model(model, parse_format(form))
        found = score(model, tiny_corpus, "validation")
        divergence = float((dense.logs.exp() * (dense.logs - found.logs)).sum(-1).mean())
        perplexity = float(np.exp(found.loss - dense.loss) - 1)
        lines.append(f"{form:13} error {figures.error:.4f}  KL {divergence:.2e} nats  perplexity {perplexity:+.3%}")
        assert divergence < most, lines[-1]
        assert abs(perplexity) < most, lines[-1]
    print("\n".join([f"float32       loss {dense.loss:.4f}", *lines]))


@pytest.mark.slow
def test_trained_with_rounding_beats_rounded_after_training(
    tmp_path: Path, tiny_corpus: Path, launch_run: Launch
) -> None:
    """Int3, one scale per matrix: as much training with rounding as without and rounding afterwards, on three seeds.

    Measured on what was trained on: how well a model this small generalises varies more than rounding costs. Two ways
    of training with rounding on the same seed differ by what is noise here.
    """
    gains: dict[str, list[float]] = {"range": [], "learned": []}
    for seed in (1, 2, 3):
        base = tmp_path / f"base-{seed}"
        launch_run(base, *SIZE, *LENGTH, f"seed={seed}")
        init_from, words = InitFrom("import", checkpoint_path(base)), (*SIZE, *LENGTH, *AGAIN, f"seed={seed}")
        launch_run(tmp_path / f"more-{seed}", *words, init_from=init_from)
        after = trained(tmp_path / f"more-{seed}")
        quantize_model(after, parse_format("int3-tensor"))
        rounded = score(after, tiny_corpus, "train").loss
        for scales, gain in gains.items():
            folder = tmp_path / f"{scales}-{seed}"
            launch_run(folder, *words, QAT % scales, init_from=init_from)
            gain.append(rounded - score(trained(folder), tiny_corpus, "train").loss)
    noise = max(abs(a - b) for a, b in zip(*gains.values(), strict=True))
    for scales, gain in gains.items():
        print(f"int3 {scales:8} {', '.join(f'{each:.4f}' for each in gain)} nats better than rounding afterwards")
        assert min(gain) > 2 * noise, (gains, noise)
