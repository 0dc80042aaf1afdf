"""What continued training learns and forgets: re-warming and replay on two real domains, with three seeds.

    python -m benchmarks.adapt.continual [--quick] [--keep FOLDER]

General text is the documentation of Linux; the new domain is that of Python or of Vim, all of ../shared/data and in the
tokens of the first. As in the published comparison (Ibrahim et al. 2024, arXiv 2403.08763) a model reads as much of the
new text as it had read of the general one, and no text twice. A small model is trained on the general text, one per
seed. From there, for each domain:

    no re-warming    the domain alone at the rate that the first training ended with
    replay R         re-warmed to the peak and decayed again, with the share R of general text
    union            a new model on both texts at once, each as often as base and adapted model together read them

Losses are on the held-out text of each domain, in nats per token; means with 95 % intervals (Student's t over seeds).
Each is a run of `hornbook train`. What is measured stands in benchmarks/results/continual.json, whatever it shows.
"""

import argparse
import contextlib
import io
import json
import math
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.report import write
from hornbook.cli.main import main
from hornbook.run.diagnose.transfer import DOMAINS, SeedMean, domain_losses

DATA = Path(__file__).parents[3] / "shared" / "data"
GENERAL = "git-doc"
"""Of the comparisons beside this one."""
OLD, NEW = "linux-doc-6.1", ("python3.11", "vim")
SEEDS = (1, 2, 3)
SHARES = (0.0, 0.05, 0.25)
PEAK, FLOOR = 4e-3, 0.05
BASE_TOKENS = DOMAIN_TOKENS = 1_572_864
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
    with io.StringIO() as said:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            code = main([*map(str, words), "-q"])
        assert code == 0, (code, words, said.getvalue())


def texts(folder: Path) -> dict[str, Path]:
    """Token shards of the general text and of each domain, in the tokens of the first."""
    data = {name: folder / name for name in (OLD, *NEW)}
    for name, path in data.items():
        hornbook("prepare", DATA / f"{name}.jsonl.gz", "--out", path, "--text.validation", 0.02)
        given = ["--tokenizer", data[OLD] / "tokenizer" / "tokenizer.json"]
        hornbook("tokenize", path, *(["--vocab", "1024"] if name == OLD else given))
    return data


def losses(run: Path, *, first: bool = False) -> dict[str, float]:
    """Losses of a run that has both domains, after its last step or before its first, on the same rows."""
    records = sorted((run / "evals").glob("step-*.json"))
    return domain_losses(json.loads(records[0 if first else -1].read_text())["sources"])


class Seed:
    """All runs of one seed."""

    def __init__(self, folder: Path, seed: int, data: dict[str, Path], scale: int) -> None:
        self.folder, self.seed, self.data, self.scale = folder / f"seed-{seed}", seed, data, scale
        self.base = self.train("base", BASE_TOKENS, OLD, *COSINE)

    def train(self, name: str, tokens: int, text: str, *words: object) -> Path:
        """A run."""
        run = self.folder / name
        length = f"train.tokens={tokens // self.scale}"
        hornbook("train", *SHAPE, length, f"seed={self.seed}", "--data", self.data[text], "--out", run, *words)
        return run

    def measure(self, domain: str) -> dict[str, dict[str, float]]:
        """Losses by stage, on the domain and on the general text."""

        def replayed(share: float) -> tuple[str, ...]:
            return f"data.replay.path={self.data[OLD]}", f"data.replay.share={share}"

        def adapted(name: str, share: float, *words: str) -> Path:
            name = f"{domain}-{name}"
            return self.train(name, DOMAIN_TOKENS, domain, "--from", self.base, *replayed(share), *words)

        runs = {"no re-warming": adapted("constant", 0.0, *NO_REWARMING)}
        runs |= {f"replay {share:.0%}": adapted(f"replay-{share}", share, *COSINE) for share in SHARES}
        share = BASE_TOKENS / (BASE_TOKENS + DOMAIN_TOKENS)
        union = self.train(f"{domain}-union", BASE_TOKENS + DOMAIN_TOKENS, domain, *replayed(share), *COSINE)
        found = {"before": losses(runs["no re-warming"], first=True)}
        return found | {name: losses(run) for name, run in {**runs, "union": union}.items()}


Measured = list[dict[str, dict[str, float]]]
"""Of each seed, losses by stage and domain."""


def difference(seeds: Measured, stage: str, other: str, domain: str) -> SeedMean:
    """Loss after `stage` less that after `other`, seed by seed."""
    return SeedMean.of([found[stage][domain] - found[other][domain] for found in seeds])


def claims(seeds: Measured) -> dict[str, dict[str, Any]]:
    """What is expected, each with its estimate and whether the measurement shows it."""
    under = difference(seeds, "no re-warming", "replay 0%", "domain")
    forgets = difference(seeds, "replay 0%", "before", "general")
    both = {name: difference(seeds, "replay 5%", "union", name) for name in DOMAINS}
    sides = {name: each.mean - (each.half or math.inf) <= 0 for name, each in both.items()}
    mean = SeedMean.of(
        [statistics.fmean(found["replay 5%"][name] - found["union"][name] for name in DOMAINS) for found in seeds]
    )
    return {
        "no re-warming adapts too little": {"difference": under.as_dict(), "shown": _is_above(under)},
        "re-warming without replay forgets": {"difference": forgets.as_dict(), "shown": _is_above(forgets)},
        "5 % replay is within noise of the union, or better": {
            "difference": {name: each.as_dict() for name, each in both.items()},
            "shown": all(sides.values()),
            "on": sides,
            "mean of both": mean.as_dict(),
        },
    }


def _is_above(found: SeedMean) -> bool:
    return found.half is not None and found.mean - found.half > 0


def describe(domain: str, seeds: Measured) -> dict[str, Any]:
    """Means and claims of one domain, printed."""
    stages = {name: {of: SeedMean.of([found[name][of] for found in seeds]) for of in DOMAINS} for name in seeds[0]}
    for name, by_domain in stages.items():
        print(f"{domain} {name:>14}  domain {by_domain['domain'].text}  general {by_domain['general'].text}")
    found = claims(seeds)
    for name, each in found.items():
        print(f"{domain} {'shown' if each['shown'] else 'not shown'}: {name} {each['difference']}")
    figures = {name: {of: each.as_dict() for of, each in some.items()} for name, some in stages.items()}
    return {"losses": figures, "seeds": seeds, "claims": found}


def run(*, quick: bool = False, keep: Path | None = None) -> None:
    """Measure, print and write."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as temporary:
        folder, scale = keep or Path(temporary), QUICK if quick else 1
        data = texts(folder)
        measured: dict[str, Measured] = {domain: [] for domain in NEW}
        for number in SEEDS:
            seed = Seed(folder, number, data, scale)
            for domain, found in measured.items():
                found.append(seed.measure(domain))
            print(f"seed {number} after {time.monotonic() - started:.0f} s", flush=True)
    domains = {domain: describe(domain, found) for domain, found in measured.items()}
    if not quick:
        settings = {"general": OLD, "base_tokens": BASE_TOKENS, "domain_tokens": DOMAIN_TOKENS}
        seconds = round(time.monotonic() - started, 1)
        write("continual", {**settings, "seconds": seconds, "domains": domains})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n", maxsplit=1)[0])
    parser.add_argument("--quick", action="store_true", help="Runs of an eighth of the length; nothing is written.")
    parser.add_argument("--keep", type=Path, help="Keep the runs in this folder.")
    given = parser.parse_args()
    run(quick=given.quick, keep=given.keep)
