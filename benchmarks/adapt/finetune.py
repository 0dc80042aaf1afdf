"""Fine-tuning on labels beside transformers' Trainer: the same weights, rows, batch and schedule, three seeds.

    python -m benchmarks.adapt.finetune FILE FILE... [--quick]

Each FILE is .jsonl(.gz) with `text`. A BERT-shaped model learns which file a passage is from; a T5-shaped one writes
the words of a sentence in their order, which it reads shuffled. Each is first trained on the text of the files
(masked words, spans), gets a head, and is exported; both sides start from that folder and train in turn. Trainer gets
the same token ids, in batches of as many rows as a step of ours has on average, padded to the longest of a batch; ours
are packed. Seconds are from the end of the first step to that of the last. Scores are of held-out rows: accuracy, or
nats per token of the answer. Writes benchmarks/results/finetune.json.
"""

import argparse
import gzip
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.adapt.continual import SEEDS, hornbook
from benchmarks.report import table, write
from hornbook.data.corpus import Corpus, Stream
from hornbook.model.build import build_model
from hornbook.model.hf.hf import write_hf
from hornbook.model.init.init import initial_values
from hornbook.model.storage.load import load_model
from hornbook.run.checkpoints.path import checkpoint_path
from hornbook.run.diagnose.transfer import SeedMean
from hornbook.settings.resolve import resolve
from hornbook.text.config.labels import AnswerLabels, ClassLabels, LabelsConfig
from hornbook.text.config.text import SourceConfig, TextConfig, TokenizerFile
from hornbook.text.refinery.pipeline.prepare import prepare
from hornbook.text.tokenizer.tokenize import tokenize

NAME = "finetune"
SEQUENCE, ROWS, WORDS = 128, 16, 8
PASSAGES, EPOCHS, BASE_TOKENS, LR = 700, 3, 400_000, 5e-4
"""Passages of each file; tokens of the training before."""
QUICK = 8
COMMON = (
    "model.layers=2",
    "model.width=128",
    "model.heads=4",
    f"train.sequence={SEQUENCE}",
    f"train.batch_tokens={ROWS * SEQUENCE}",
    f"train.micro_batch={ROWS}",
    "train.precision=fp32",
    "train.device=cpu",
    f"train.threads={os.cpu_count()}",
    f"optim.lr={LR}",
    "optim.beta1=0.9",
    "optim.beta2=0.999",
    "optim.eps=1e-8",
    "optim.weight_decay=0.0",
    "optim.schedule.kind=linear",
    "optim.schedule.warmup=10%",
    "checkpoint.every=0",
    "eval.every=0",
    "eval.prompt=",
    "log.statistics_every=0",
    "guard.probe_every=0",
)
SHAPES = {
    "bert": ("tiny-bert", "model.block=post"),
    "t5": ("tiny-t5", "model.encoder_layers=2"),
}
TUNED = {"bert": "data.objective.kind=labels", "t5": "data.objective.kind=seq2seq"}


def passages(path: Path) -> Iterator[str]:
    """Sentences of a file, of `WORDS` words and more, as far as 24."""
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as lines:
        for line in lines:
            for part in str(json.loads(line)["text"]).split("\n"):
                words = part.split()
                if len(words) >= WORDS and part[0].isalpha():
                    yield " ".join(words[:24])


def write_rows(folder: Path, files: Sequence[Path], count: int) -> None:
    """plain.jsonl, bert.jsonl and t5.jsonl."""
    draw, rows = random.Random(0), list[dict[str, str]]()
    for path in files:
        found = list(dict.fromkeys(passages(path)))
        draw.shuffle(found)
        rows += [{"text": text, "label": path.name.partition(".")[0]} for text in found[:count]]
    draw.shuffle(rows)
    pairs = []
    for row in rows:
        words = row["text"].split()[:WORDS]
        pairs.append({"prompt": " ".join(draw.sample(words, len(words))), "answer": " ".join(words)})
    for name, each in (("plain", rows), ("bert", rows), ("t5", pairs)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in each))


def start_of(folder: Path, family: str, scale: int) -> tuple[Path, Path]:
    """(exported weights, labelled data): trained on the plain text, with the head of the task."""
    plain, run, data, start = (folder / f"{family}-{name}" for name in ("plain", "base", "data", "start"))
    recipe, *shape = SHAPES[family]
    hornbook("prepare", recipe, folder / "plain.jsonl", "--out", plain)
    hornbook("tokenize", plain, "--vocab", 2000)
    hornbook("train", recipe, *shape, *COMMON, f"train.tokens={BASE_TOKENS // scale}", "--data", plain, "--out", run)
    labels: LabelsConfig = ClassLabels() if family == "bert" else AnswerLabels()
    config = TextConfig(
        sources={"set": SourceConfig(paths=[str(folder / f"{family}.jsonl")])},
        labels=labels,
        tokenizer=TokenizerFile(path=str(plain / "tokenizer")),
        steps=[],
        validation=0.2,
    )
    prepare(config, data, workers=1)
    tokenize(data, config, workers=1)
    base = load_model(checkpoint_path(run))
    model = resolve(recipe, [*shape, *COMMON, TUNED[family], *head_words(family, Corpus.open(data))]).recipe.model
    built = build_model(model, base.vocab, "meta")
    known = {name: each.detach() for name, each in base.model.named_parameters()}
    values = dict(initial_values(built, model, 0))
    values |= {name: each for name, each in known.items() if name in values and values[name].shape == each.shape}
    write_hf(start, values.items(), model, base.vocab, data / "tokenizer")
    return start, data


def head_words(family: str, corpus: Corpus) -> list[str]:
    """Settings of the head that learns the labels."""
    if family != "bert":
        return []
    assert isinstance(corpus.labels, ClassLabels)
    return ["model.head.kind=classification", f"model.head.labels={json.dumps(corpus.labels.labels)}",
            'model.head.transform={kind="dense"}']  # fmt: skip


def rows_of(family: str, corpus: Corpus, stream: Stream) -> Iterator[dict[str, Any]]:
    """Token ids and labels of each document, as transformers' models take them."""
    for shard in stream.shards:
        labels = shard.labels
        assert labels is not None
        for begin, end in pairwise([0, *shard.ends.tolist()]):
            tokens = [int(each) for each in shard.data[begin:end]]
            if family == "bert":
                yield {"input_ids": tokens, "labels": int(labels[begin, 0])}
                continue
            place = int(np.argmax(~np.isnan(labels[begin:end, 0])))
            own_end = corpus.delimiter_id != corpus.end_id
            first = tokens[:1] if own_end else []
            answer = tokens[place : len(tokens) - own_end]
            yield {"input_ids": [*first, *tokens[1:place], corpus.end_id], "labels": [*first, *answer, corpus.end_id]}


def ours(family: str, start: Path, data: Path, out: Path, seed: int) -> dict[str, float]:
    """Score, seconds and steps of a run."""
    recipe, *shape = SHAPES[family]
    words = (*shape, *COMMON, TUNED[family], *head_words(family, Corpus.open(data)), f"train.epochs={EPOCHS}")
    hornbook("train", recipe, *words, f"seed={seed}", "--data", data, "--from", start, "--out", out)
    steps = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    steps = [each for each in steps if "seconds" in each and "step" in each]
    found = json.loads(sorted((out / "evals").glob("step-*.json"))[-1].read_text())
    whole = found.get("whole", found)["all"]
    score = whole["accuracy"] if family == "bert" else whole["loss"]
    return {"score": score, "seconds": steps[-1]["time"] - steps[0]["time"], "steps": len(steps)}


def theirs(family: str, start: Path, rows: Path, out: Path, seed: int, steps: int) -> dict[str, float]:
    """The same of Trainer."""
    spec = {"family": family, "start": str(start), "rows": str(rows), "out": str(out), "seed": seed, "steps": steps}
    spec |= {"lr": LR, "epochs": EPOCHS, "threads": os.cpu_count()}
    script = Path(__file__).with_name("finetune_trainer.py")
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": ""}
    command = [sys.executable, str(script), json.dumps(spec)]
    subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return json.loads(out.read_text())


def measure(folder: Path, family: str, scale: int) -> dict[str, Any]:
    """Both sides in turn, seed by seed."""
    start, data = start_of(folder, family, scale)
    corpus, rows = Corpus.open(data), folder / f"{family}-rows.json"
    parts = (("train", corpus.train["set"]), ("dev", corpus.validation["set"]))
    kept = {name: list(rows_of(family, corpus, stream)) for name, stream in parts}
    rows.write_text(json.dumps({**kept, "pad": 0}))
    found: dict[str, list[dict[str, float]]] = {"hornbook": [], "trainer": []}
    for seed in SEEDS:
        mine = ours(family, start, data, folder / f"{family}-{seed}", seed)
        other = theirs(family, start, rows, folder / f"{family}-{seed}.json", seed, int(mine["steps"]))
        found["hornbook"].append(mine)
        found["trainer"].append(other)
        print(family, seed, mine, other, flush=True)
    sides = {
        name: {
            "score": SeedMean.of([each["score"] for each in side]).as_dict(),
            "seconds": [each["seconds"] for each in side],
            "scores": [each["score"] for each in side],
        }
        for name, side in found.items()
    }
    difference = [a["score"] - b["score"] for a, b in zip(found["hornbook"], found["trainer"], strict=True)]
    ratios = sorted(b["seconds"] / a["seconds"] for a, b in zip(found["hornbook"], found["trainer"], strict=True))
    facts = {"rows": len(kept["train"]), "steps": found["hornbook"][0]["steps"]}
    return {**facts, **sides, "difference": SeedMean.of(difference).as_dict(), "faster": ratios[len(ratios) // 2]}


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n", maxsplit=1)[0])
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="Two or more, .jsonl or .jsonl.gz.")
    parser.add_argument("--quick", action="store_true", help="An eighth of the text and training; nothing is written.")
    given = parser.parse_args()
    scale = QUICK if given.quick else 1
    with tempfile.TemporaryDirectory() as folder:
        write_rows(Path(folder), given.files, PASSAGES // scale)
        found = {family: measure(Path(folder), family, scale) for family in SHAPES}
    keys = ("score", "seconds")
    lines = [(name, side, *(str(each[side][key]) for key in keys)) for name, each in found.items() for side in SIDES]
    print(table(("model", "side", *keys), lines))
    if not given.quick:
        write(NAME, {"files": [path.name.partition(".")[0] for path in given.files], "epochs": EPOCHS, "models": found})


SIDES = ("hornbook", "trainer")

if __name__ == "__main__":
    main()
