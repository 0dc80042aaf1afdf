"""What continued training learns and forgets: re-warming and replay on two real domains, with three seeds.

    python -m benchmarks.adapt.continual [--quick] [--keep FOLDER]

General text is the documentation of git, the new domain the German administrator's handbook, both of ../shared/data and
both in the tokens of the first. A small model is trained on the general text, one per seed. From there:

    no re-warming    the domain alone at the rate that the first training ended with
    replay R         re-warmed to the peak and decayed again, with the share R of general text
    union            a new model on both texts at once, each as often as base and adapted model together read them

Losses are on the held-out text of each domain, in nats per token; means with 95 % intervals (Student's t over seeds).
Each is a run of `hornbook train`. What is measured stands in benchmarks/results/continual.json, whatever it shows.
"""

import argparse
import contextlib
import json
import math
import os
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.report import write
from hornbook.cli.main import main
from hornbook.run.diagnose.transfer import DOMAINS, Estimate, domain_losses

DATA = Path(__file__).parents[3] / "shared" / "data"
GENERAL, DOMAIN = "git-doc", "handbook-de-DE"
SEEDS = (1, 2, 3)
SHARES = (0.0, 0.05, 0.25)
PEAK, FLOOR = 4e-3, 0.05
BASE_TOKENS, DOMAIN_TOKENS = 327_680, 81_920
QUICK = 8
"""With --quick, runs have one token in so many."""
SHAPE = (
    "tiny",
    "model.layers=2",
    "model.width=64",
    "model.heads=2",
    "train.sequence=128",
    "train.batch_tokens=2048",
    "train.micro_batch=16",
    "train.precision=fp32",
    "train.device=cpu",
    "train.threads=1",
    "checkpoint.every=0",
    "eval.every=0",
    "eval.prompt=",
    "log.statistics_every=0",
    "guard.probe_every=0",
)
COSINE = (f"optim.lr={PEAK}", f"optim.schedule.floor={FLOOR}")
NO_REWARMING = (f"optim.lr={PEAK * FLOOR}", "optim.schedule.kind=constant", "optim.schedule.warmup=0 steps")


def hornbook(*words: object) -> None:
    """A command, which must end well."""
    with open(os.devnull, "w") as silence, contextlib.redirect_stdout(silence), contextlib.redirect_stderr(silence):
        code = main([*map(str, words), "-q"])
    assert code == 0, (code, words)


def texts(folder: Path) -> tuple[Path, Path]:
    """Token shards of the general text and of the domain, in the tokens of the first."""
    general, domain = folder / GENERAL, folder / DOMAIN
    for name, data, share in ((GENERAL, general, 0.02), (DOMAIN, domain, 0.06)):
        hornbook("prepare", DATA / f"{name}.jsonl.gz", "--out", data, "--text.validation", share)
        tokenizer = (
            ["--vocab", "1024"] if data == general else ["--tokenizer", general / "tokenizer" / "tokenizer.json"]
        )
        hornbook("tokenize", data, *tokenizer)
    return general, domain


def losses(run: Path, *, first: bool = False) -> dict[str, float]:
    """Losses of a run that has both domains, after its last step or before its first, on the same rows."""
    records = sorted((run / "evals").glob("step-*.json"))
    return domain_losses(json.loads(records[0 if first else -1].read_text())["sources"])


class Seed:
    """All runs of one seed."""

    def __init__(self, folder: Path, seed: int, data: tuple[Path, Path], scale: int) -> None:
        self.folder, self.seed, (self.general, self.domain), self.scale = folder / f"seed-{seed}", seed, data, scale

    def train(self, name: str, tokens: int, data: Path, *words: object) -> Path:
        """A run."""
        run = self.folder / name
        length = f"train.tokens={tokens // self.scale}"
        hornbook("train", *SHAPE, length, f"seed={self.seed}", "--data", data, "--out", run, *words)
        return run

    def measure(self) -> dict[str, dict[str, float]]:
        """Losses by stage and domain."""
        base = self.train("base", BASE_TOKENS, self.general, *COSINE)

        def adapted(name: str, share: float, *words: str) -> Path:
            replay = (f"data.replay.path={self.general}", f"data.replay.share={share}")
            return self.train(name, DOMAIN_TOKENS, self.domain, "--from", base, *replay, *words)

        runs = {"no re-warming": adapted("constant", 0.0, *NO_REWARMING)}
        runs |= {f"replay {share:.0%}": adapted(f"replay-{share}", share, *COSINE) for share in SHARES}
        share = BASE_TOKENS / (BASE_TOKENS + DOMAIN_TOKENS)
        both = (f"data.replay.path={self.general}", f"data.replay.share={share}")
        union = self.train("union", BASE_TOKENS + DOMAIN_TOKENS, self.domain, *both, *COSINE)
        found = {"before": losses(runs["no re-warming"], first=True)}
        return found | {name: losses(run) for name, run in {**runs, "union": union}.items()}


def difference(seeds: list[dict[str, dict[str, float]]], stage: str, other: str, domain: str) -> Estimate:
    """Loss after `stage` less that after `other`, seed by seed."""
    return Estimate.of([found[stage][domain] - found[other][domain] for found in seeds])


def claims(seeds: list[dict[str, dict[str, float]]]) -> dict[str, dict[str, Any]]:
    """What is expected, each with its estimate and whether the measurement shows it."""
    under = difference(seeds, "no re-warming", "replay 0%", "domain")
    forgets = difference(seeds, "replay 0%", "before", "general")
    both = {name: difference(seeds, "replay 5%", "union", name) for name in DOMAINS}
    sides = {name: each.mean - (each.half or math.inf) <= 0 for name, each in both.items()}
    return {
        "no re-warming adapts too little": {"difference": under.as_dict(), "shown": _is_above(under)},
        "re-warming without replay forgets": {"difference": forgets.as_dict(), "shown": _is_above(forgets)},
        "5 % replay is within noise of the union, or better": {
            "difference": {name: each.as_dict() for name, each in both.items()},
            "shown": all(sides.values()),
            "on": sides,
        },
    }


def _is_above(found: Estimate) -> bool:
    return found.half is not None and found.mean - found.half > 0


def run(*, quick: bool = False, keep: Path | None = None) -> None:
    """Measure, print and write."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as temporary:
        folder, scale = keep or Path(temporary), QUICK if quick else 1
        data = texts(folder)
        seeds = []
        for seed in SEEDS:
            seeds.append(Seed(folder, seed, data, scale).measure())
            print(f"seed {seed} after {time.monotonic() - started:.0f} s", flush=True)
    stages = {
        name: {domain: Estimate.of([found[name][domain] for found in seeds]) for domain in DOMAINS} for name in seeds[0]
    }
    for name, by_domain in stages.items():
        print(f"{name:>14}  domain {by_domain['domain'].text}  general {by_domain['general'].text}")
    found = claims(seeds)
    for name, each in found.items():
        print(f"{'shown' if each['shown'] else 'not shown'}: {name} {each['difference']}")
    if quick:
        return
    figures = {name: {domain: each.as_dict() for domain, each in some.items()} for name, some in stages.items()}
    settings = {"general": GENERAL, "domain": DOMAIN, "base_tokens": BASE_TOKENS, "domain_tokens": DOMAIN_TOKENS}
    seconds = round(time.monotonic() - started, 1)
    write("continual", {**settings, "seconds": seconds, "losses": figures, "seeds": seeds, "claims": found})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n", maxsplit=1)[0])
    parser.add_argument("--quick", action="store_true", help="Runs of an eighth of the length; nothing is written.")
    parser.add_argument("--keep", type=Path, help="Keep the runs in this folder.")
    given = parser.parse_args()
    run(quick=given.quick, keep=given.keep)
