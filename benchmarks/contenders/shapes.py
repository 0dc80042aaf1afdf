"""The shapes of the throughput benchmark: recipes, initial weights for every contender, text to train on."""

import subprocess
import sys
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from hornbook.model.build_model import build_model
from hornbook.model.config.model_config import ModelConfig
from hornbook.model.hf.hf import write_hf
from hornbook.model.init.init import initialize
from hornbook.settings.resolve import resolve
from hornbook.text.ingest.corpora.installed import write_installed_corpus

Shape = dict[str, int]

SHAPES: dict[str, Shape] = {
    "13M": {"gated": 1, "width": 384, "layers": 6, "heads": 6, "hidden": 1024, "vocab": 8192},
    "30M": {"gated": 1, "width": 512, "layers": 8, "heads": 8, "hidden": 1408, "vocab": 8192},
    "124M": {"gated": 0, "width": 768, "layers": 12, "heads": 12, "hidden": 3072, "vocab": 50304},
}
"""LLaMA (gated, tied), and GPT-2 small with its vocabulary padded as its reimplementations do."""
SHAPES["13M"] |= {"rows": 8, "sequence": 512}
SHAPES["30M"] |= {"rows": 4, "sequence": 512}
SHAPES["124M"] |= {"rows": 1, "sequence": 1024}
SEED = 1


def recipe_words(shape: Shape) -> tuple[str, list[str]]:
    """(shipped recipe, settings) of a shape: what `hornbook train` takes. The run has no end and saves nothing."""
    tokens = shape["rows"] * shape["sequence"]
    words = {"model.vocab": shape["vocab"], "model.init.std": 0.02, "seed": SEED}
    words |= {"train.batch_tokens": tokens, "train.tokens": 10**6 * tokens}
    words |= {"train.sequence": shape["sequence"], "train.micro_batch": shape["rows"], "train.compile": "false"}
    words |= {"optim.lr": 3e-4, "optim.beta2": 0.95, "optim.weight_decay": 0.0, "optim.clip": 1.0}
    words |= {"optim.schedule.kind": "constant", "optim.schedule.warmup": 0}
    words |= {"eval.every": 0, "checkpoint.every": 0}
    if shape["gated"]:
        words |= {f"model.{key}": shape[key] for key in ("width", "layers", "heads")}
        words |= {"model.mlp.hidden": shape["hidden"], "model.position.length": shape["sequence"]}
    return "tiny" if shape["gated"] else "gpt2-124m", [f"{key}={value}" for key, value in words.items()]


def model_config(shape: Shape) -> ModelConfig:
    """hornbook's configuration of a shape."""
    name, words = recipe_words(shape)
    return resolve(name, words, environ={}).recipe.model


def make_weights(folder: Path, shape: Shape) -> dict[str, Any]:
    """One set of initial weights, under our names and as transformers' checkpoint."""
    config = model_config(shape)
    model = build_model(config, shape["vocab"]).to_empty(device="cpu")
    initialize(model, config, seed=SEED)
    save_file({name: each.contiguous() for name, each in model.state_dict().items()}, folder / "own.safetensors")
    write_hf(folder / "checkpoint", model, config, shape["vocab"], None)
    return {"own_weights": str(folder / "own.safetensors"), "checkpoint": str(folder / "checkpoint")}


def make_data(folder: Path) -> str:
    """A tokenized corpus, for a loader that has rows to draw."""
    write_installed_corpus(folder / "raw", max_bytes=1_500_000, seed=0)
    hornbook = [sys.executable, "-m", "hornbook"]
    for words in (
        ["prepare", folder / "raw", "--out", folder / "data"],
        ["tokenize", folder / "data", "--vocab", "4k"],
    ):
        subprocess.run([*hornbook, *map(str, words)], check=True, capture_output=True)
    return str(folder / "data")
