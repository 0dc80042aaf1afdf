"""A data folder of random tokens, so that the step of a recipe is measured before there is any text.

Documents have log-normal lengths around 400 tokens and ids that fall off like words do, so packing, masks and the
objective work as they would on text; what a model learns from it means nothing.
"""

import itertools
from pathlib import Path

import numpy as np

from hornbook.errors import UsageError
from hornbook.files.artifact import write_json
from hornbook.model.config.head_config import LabelHeadConfig
from hornbook.settings.recipe import Recipe
from hornbook.text.tokenizer.shards import describe_shard, writing_shard
from hornbook.text.tokenizer.token_dtypes import dtype_for
from hornbook.text.tokenizer.tokenizer import Tokenizer

END = "<|endoftext|>"
SENTINELS = 100
SPECIALS = ("[PAD]", "[MASK]", "[R]", "[S]", "[X]", "<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")
MEDIAN_LENGTH, LENGTH_SIGMA = 400, 1.0
LEAST_TOKENS, ROWS = 200_000, 64
"""At least so many tokens, and rows of `train.sequence`; they are read again and again."""
DEFAULT_VOCAB = 16_384


def write_synthetic(recipe: Recipe, folder: Path) -> Recipe:
    """Write the folder; returns the recipe over it, with one source. UsageError for recipes that learn labels."""
    if isinstance(recipe.model.head, LabelHeadConfig) or recipe.data.objective.predicts_labels:
        raise UsageError(
            f"{recipe.name} learns labels, which random tokens have not: name data with labels, --data DATA"
        )
    vocab = recipe.model.vocab or getattr(recipe.text.tokenizer, "vocab", DEFAULT_VOCAB)
    tokenizer = write_tokenizer(folder / "tokenizer", vocab)
    tokens = max(LEAST_TOKENS, ROWS * recipe.train.sequence)
    _write_tokens(folder, tokenizer, tokens, recipe.seed)
    data = recipe.data.model_copy(update={"path": str(folder), "weights": {}, "stages": [], "max_epochs": None})
    evaluation = recipe.eval.model_copy(update={"tasks": []})
    return recipe.model_copy(update={"data": data, "eval": evaluation})


def write_tokenizer(folder: Path, size: int) -> Tokenizer:
    """A byte-level tokenizer of `size` tokens, without merges, with the special tokens that objectives ask for."""
    from tokenizers import AddedToken, decoders, models, pre_tokenizers
    from tokenizers import Tokenizer as Library

    sentinels = [f"<extra_id_{number}>" for number in range(SENTINELS)]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    specials = [END, *SPECIALS, *sentinels][: max(size - len(alphabet), 1)]
    words = (f"\u0120w{number}" for number in itertools.count())  # as a tokenizer spells " w0"
    names = [*specials, *alphabet]
    names += itertools.islice(words, max(size - len(names), 0))
    made = Library(models.BPE(vocab={name: number for number, name in enumerate(names)}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # pyright: ignore[reportAttributeAccessIssue]
    made.decoder = decoders.ByteLevel()  # pyright: ignore[reportAttributeAccessIssue]
    made.add_special_tokens([AddedToken(name, special=True) for name in specials])
    folder.mkdir(parents=True)
    made.save(str(folder / "tokenizer.json"))
    return Tokenizer.load(folder)


def _write_tokens(folder: Path, tokenizer: Tokenizer, tokens: int, seed: int) -> None:
    """Training shard `random` of at least `tokens` tokens, and the index."""
    draw, dtype = np.random.default_rng(seed), dtype_for(tokenizer.vocab_size)
    first = len(tokenizer.special_ids)
    ordinary = tokenizer.vocab_size - first
    path = folder / "tokens" / "train" / "random" / "00000"
    path.parent.mkdir(parents=True)
    with writing_shard(path, dtype) as shard:
        number = written = 0
        while written < tokens:
            length = int(np.clip(draw.lognormal(np.log(MEDIAN_LENGTH), LENGTH_SIGMA), 8, 20_000))
            ids = first + np.minimum(draw.zipf(1.2, length) - 1, ordinary - 1)
            shard.add(
                np.concatenate([[tokenizer.delimiter_id], ids]), f"random#{number}", f"random:{number}", 4 * length
            )
            number, written = number + 1, written + length + 1
    index = {
        "dtype": dtype,
        "vocab_size": tokenizer.vocab_size,
        "tokenizer_digest": tokenizer.digest,
        "delimiter_id": tokenizer.delimiter_id,
        "end_id": tokenizer.end_id,
        "shards": [describe_shard(folder, "train", "random", 0).to_json()],
    }
    write_json(folder / "tokens" / "index.json", index)
