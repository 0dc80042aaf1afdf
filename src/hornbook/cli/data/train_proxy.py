"""`hornbook tokenize --train-proxy`: the same small model on each tokenizer, for the same bytes of text.

Bits-per-byte of held-out text is the one figure that tokenizers share. It is divided by the bytes of the text itself,
so a tokenizer that loses something (WordPiece: blanks, capitals) codes less than it should and looks too good.
"""

import json
import math
import shutil
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hornbook.cli.result import table
from hornbook.errors import Exit, HornbookError
from hornbook.files.run_directory import RunDir
from hornbook.files.run_status import fullest, newest_evaluation

if TYPE_CHECKING:
    from hornbook.text.tokenizer.compare.compare import TextSample
    from hornbook.text.tokenizer.tokenizer import Tokenizer

SEEDS = (1, 2)
HELD_OUT = 0.1
PIECE = 4096
"""Characters per document: samples are cut into small ones, so that a share of the documents is a share of the text."""
MODEL = ("model.layers=2", "model.width=128", "model.heads=2")
TRAINING = ("train.epochs=1", "train.batch_tokens=2048", "train.micro_batch=8", "train.sequence=256", "optim.lr=3e-3")
QUIETLY = ("checkpoint.every=1M", "eval.every=0", "eval.tokens=1G", 'eval.prompt=""', "log.every=1M")


@dataclass(frozen=True, slots=True)
class Proxy:
    """Results of the small model with one tokenizer."""

    tokenizer: str
    tokens: int
    """Number of tokens of the training text."""
    bits_per_byte: tuple[float, ...]
    """Bits per byte of the held-out text, one per seed."""

    @property
    def mean(self) -> float:
        """Mean over the seeds."""
        return statistics.fmean(self.bits_per_byte)

    def to_json(self) -> dict[str, Any]:
        """For `--json`."""
        measured = {"bits_per_byte": self.mean, "by_seed": list(self.bits_per_byte)}
        return {"tokenizer": self.tokenizer, "tokens": self.tokens, **measured}


def train_proxies(
    tokenizers: "Mapping[str, Tokenizer]", samples: "Sequence[TextSample]", scratch: Path
) -> Iterator[Proxy]:
    """Train and score one tokenizer after the other; the same tokenizers and texts give the same results."""
    data = _prepare(samples, scratch)
    for number, (name, tokenizer) in enumerate(tokenizers.items()):
        folder = _tokenize(data, tokenizer, scratch / f"data-{number}")
        index = json.loads((folder / "tokens" / "index.json").read_bytes())["shards"]
        size = {split: [shard for shard in index if shard["split"] == split] for split in ("train", "validation")}
        bits = [_train(folder, scratch / f"run-{number}-{seed}", seed) for seed in SEEDS]
        held_out = sum(shard["bytes"] for shard in size["validation"])
        yield Proxy(name, sum(shard["tokens"] for shard in size["train"]), tuple(each / held_out for each in bits))


def noise(found: Sequence[Proxy]) -> float:
    """Standard deviation of a mean over seeds, pooled over all tokenizers."""
    variances = [statistics.variance(proxy.bits_per_byte) for proxy in found]
    return math.sqrt(statistics.fmean(variances) / len(SEEDS))


def _prepare(samples: "Sequence[TextSample]", scratch: Path) -> Path:
    """Write the samples as a prepared folder of small documents."""
    from hornbook.text.config.text import SourceConfig, TextConfig
    from hornbook.text.refinery.pipeline.prepare import prepare

    sources = {}
    for number, sample in enumerate(samples):
        path = scratch / f"text-{number}.jsonl"
        pieces = (text[start : start + PIECE] for text in sample.texts for start in range(0, len(text), PIECE))
        path.write_text("".join(json.dumps({"text": piece}) + "\n" for piece in pieces), encoding="utf-8")
        sources[f"text-{number}"] = SourceConfig(paths=[str(path)])
    prepare(TextConfig(sources=sources), scratch / "data", workers=1)
    return scratch / "data"


def _tokenize(data: Path, tokenizer: "Tokenizer", folder: Path) -> Path:
    from hornbook.text.config.text import TextConfig, TokenizerFile
    from hornbook.text.tokenizer.files import save_tokenizer
    from hornbook.text.tokenizer.tokenize import tokenize

    shutil.copytree(data, folder)
    save_tokenizer(tokenizer, folder.with_name(f"{folder.name}-tokenizer"))
    given = TokenizerFile(path=str(folder.with_name(f"{folder.name}-tokenizer")))
    tokenize(folder, TextConfig(tokenizer=given, validation=HELD_OUT), workers=1)
    return folder


def _train(data: Path, out: Path, seed: int) -> float:
    """Train the small model; returns the bits it needs for the held-out text."""
    from hornbook.run.job.job import Start
    from hornbook.run.launch.launch import launch
    from hornbook.settings.resolve import resolve

    settings = (*MODEL, *TRAINING, *QUIETLY, f"seed={seed}", f"data.path={json.dumps(str(data))}")
    resolved, run = resolve("tiny", settings, environ={}), RunDir(out)
    code = launch(resolved, run, Start(quiet=True))
    if code != Exit.DONE:
        stopped = HornbookError("the training of the small model was stopped")
        stopped.exit_code = code
        raise stopped
    newest = newest_evaluation(run)
    assert newest is not None
    score = fullest(newest)["all"]
    shutil.rmtree(run.checkpoints)
    return score["loss"] * score["tokens"] / math.log(2)


def proxy_table(found: Sequence[Proxy], lossy: Sequence[str]) -> list[Any]:
    """The results for people, the difference that may be chance, and the tokenizers that lose some of the text."""
    numbers = ("tokens read", *(f"seed {seed}" for seed in SEEDS), "bits/byte")
    made = table("The same small model on each", ["tokenizer"], numbers, fold=True)
    best = min((proxy.mean for proxy in found if proxy.tokenizer not in lossy), default=None)
    for proxy in found:
        seeds = [f"{bits:.3f}" for bits in proxy.bits_per_byte]
        mean = f"[bold]{proxy.mean:.3f}[/]" if proxy.mean == best else f"{proxy.mean:.3f}"
        made.add_row(proxy.tokenizer, f"{proxy.tokens:,}", *seeds, mean)
    # the difference of two means varies by sqrt(2) as much as a mean; twice that is clear
    clear = 2 * math.sqrt(2) * noise(found)
    notes = [f"differences below {clear:.3f} may be chance (two seeds); a larger model may rank them otherwise"]
    notes += [f"{name} loses some of the text: its bits per byte are too few to compare" for name in lossy]
    return [made, "\n".join(notes)]
