"""Drafted text beside text of one token at a time: tokens for each pass of the model, and tokens per second.

    python -m benchmarks.adapt.speculative [--quick]

Two models of four layers are trained on the documentation of git (../shared/data), alike but for two blocks of
multi-token prediction in one; and a smaller one of one layer, which drafts too. Text continues the begins of held-out
documents, greedily and at temperature 0.8. Each way of generating has its turn on each prompt, one after the other,
on one thread; rates are tokens over seconds of all prompts. What is measured stands in
benchmarks/results/speculative.json, whatever it shows.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from benchmarks.adapt.continual import COSINE, DATA, GENERAL, SHAPE, hornbook
from benchmarks.adapt.smaller import loss
from benchmarks.report import write
from hornbook.data.corpus import Corpus
from hornbook.model.generate.generate import generate
from hornbook.model.generate.speculative import OtherModel, OwnBlocks, Tally, speculate
from hornbook.model.storage.load import Loaded, load_model
from hornbook.run.checkpoints.path import checkpoint_path

WIDE = ("model.layers=4", "model.heads=4", "model.width=128")
SMALL = ("model.layers=1", "model.heads=2", "model.width=64")
MTP = ("model.mtp.kind=sequential", "model.mtp.depth=2")
TOKENS, PROMPTS, PROMPT_TOKENS, NEW_TOKENS, DRAFTS = 327_680, 12, 16, 96, 4
QUICK = 16
"""With --quick, runs have one token in so many."""


def trained(folder: Path, data: Path, name: str, tokens: int, *words: object) -> Path:
    """A run."""
    run = folder / name
    hornbook("train", *SHAPE, *COSINE, f"train.tokens={tokens}", "--data", data, "--out", run, *words)
    return run


def prompts(data: Path) -> list[list[int]]:
    """The begins of held-out documents."""
    found = list[list[int]]()
    for stream in Corpus.open(data).validation.values():
        for shard in stream.shards:
            bounds = pairwise([0, *shard.ends.tolist()])
            found += [shard.data[a : a + PROMPT_TOKENS].tolist() for a, b in bounds if b - a > 2 * PROMPT_TOKENS]
    return found[:PROMPTS]


def ways(base: Loaded, further: Loaded, small: Loaded) -> dict[str, tuple[Callable[..., Iterator[int]], Tally]]:
    """By name what continues a prompt, and what counts passes and drafts."""
    room, tallies = base.config.position.length, [Tally() for _ in range(4)]
    own, other = OwnBlocks(further.model), OtherModel(small.model, DRAFTS, room)
    return {
        "plain": (partial(generate, base.model), tallies[0]),
        "plain, with further blocks": (partial(generate, further.model), tallies[1]),
        "own blocks": (partial(speculate, further.model, drafter=own, tally=tallies[2]), tallies[2]),
        "smaller model": (partial(speculate, base.model, drafter=other, tally=tallies[3]), tallies[3]),
    }


def measure(each: dict[str, tuple[Callable[..., Iterator[int]], Tally]], begins: list[list[int]], **how: Any) -> Any:
    """By name: tokens a second, and of drafts what became of them."""
    texts = dict[tuple[str, int], list[int]]()
    seconds, made = dict.fromkeys(each, 0.0), dict.fromkeys(each, 0)
    for number, begin in enumerate([begins[0], *begins]):  # the first time warms up
        for name, (continued, tally) in each.items():
            started = time.perf_counter()
            texts[name, number] = list(continued(tokens=begin, max_tokens=NEW_TOKENS, seed=number, **how))
            seconds[name] += time.perf_counter() - started
            made[name] += NEW_TOKENS
            if number == 0:
                seconds[name], made[name] = 0.0, 0
                vars(tally).update(vars(Tally()))
    equal = {
        "own blocks": "plain, with further blocks",
        "smaller model": "plain",
    }
    found = {name: {"tokens_per_second": round(made[name] / seconds[name], 1)} for name in each}
    for name, plain in equal.items():
        speed = round(found[name]["tokens_per_second"] / found[plain]["tokens_per_second"], 3)
        found[name] |= {**each[name][1].record(), "times_as_fast": speed}
        if how.get("greedy"):  # drawn texts are alike in distribution alone
            same = sum(texts[name, number] == texts[plain, number] for number in range(1, len(begins) + 1))
            found[name]["equal_texts"] = same
    return found


def run(*, quick: bool = False) -> None:
    """Measure, print and write."""
    started, scale = time.monotonic(), QUICK if quick else 1
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        folder, data = Path(temporary), Path(temporary) / "data"
        hornbook("prepare", DATA / f"{GENERAL}.jsonl.gz", "--out", data, "--text.validation", 0.02)
        hornbook("tokenize", data, "--vocab", "1024")
        words = {"plain": WIDE, "further": (*WIDE, *MTP), "small": SMALL}
        runs = {name: trained(folder, data, name, TOKENS // scale, *each) for name, each in words.items()}
        losses = {name: loss(each) for name, each in runs.items()}
        print(f"held-out losses {losses} after {time.monotonic() - started:.0f} s", flush=True)
        models = [load_model(checkpoint_path(each)) for each in runs.values()]
        begins = prompts(data)
        results = {
            "greedy": measure(ways(*models), begins, greedy=True, length=models[0].config.position.length),
            "temperature 0.8": measure(ways(*models), begins, temperature=0.8, length=models[0].config.position.length),
        }
    print(json.dumps(results, indent=1))
    if not quick:
        settings = {"text": GENERAL, "tokens": TOKENS, "prompts": len(begins), "new_tokens": NEW_TOKENS}
        seconds = round(time.monotonic() - started, 1)
        write("speculative", {**settings, "losses": losses, "results": results, "seconds": seconds})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n", maxsplit=1)[0])
    parser.add_argument("--quick", action="store_true", help="Short runs; nothing is written.")
    run(quick=parser.parse_args().quick)
