"""`hornbook adapt`: train a model on a domain with several shares of replay, and say what it learned and forgot."""

import json
import os
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hornbook.cli.child import command
from hornbook.cli.model.subject import open_subject
from hornbook.cli.result import Result
from hornbook.cli.shell import DryRun, Words, resolve_words, say
from hornbook.errors import Exit, IntegrityError, UsageError, quoted
from hornbook.files.durable import storage_errors, write_atomic
from hornbook.files.run_directory import RunDir
from hornbook.files.run_status import evaluations, find_runs, status_of
from hornbook.progress import progress_bar
from hornbook.settings.sources import COMMAND_LINE

if TYPE_CHECKING:
    from hornbook.data.corpus import Corpus
    from hornbook.run.diagnose.domain_transfer import Adaptation, Chains
    from hornbook.studio.frontier import Dot

    Runs = dict[tuple[float, int], list[RunDir]]

OWN = ("data.path", "data.replay.path", "data.replay.share", "seed")
"""Settings that the command itself gives."""
QUESTION = "adapt.json"
"""In the folder: what its runs are of."""


def adapt(
    words: Words = None,
    *,
    from_: Annotated[Path, typer.Option("--from", metavar="RUN|CHECKPOINT", help="The model to adapt.")],
    domain: Annotated[
        list[Path], typer.Option(metavar="DATA", help="Tokens of the new domain; of several, one after the other.")
    ],
    general: Annotated[Path, typer.Option(metavar="DATA", help="Tokens of what the model was trained on.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for the runs and the report.")],
    replay: Annotated[str, typer.Option(metavar="S,S...", help="Shares of general text.")] = "0,1%,5%,25%",
    seeds: Annotated[str, typer.Option(metavar="N,N...", help="Each share is trained with each of them.")] = "1",
    dry_run: DryRun = False,
) -> Result:
    """Train a model on a domain once for each share of replay, and report what it learned and what it forgot.

    The report has losses on all texts by stage, forgetting and transfer with intervals over the seeds, and a picture of
    the frontier. Of several domains each is trained on from the last one's model. The same command goes on.
    """
    shares, numbers = _shares(replay), _seeds(seeds)
    resolved = resolve_words(words)
    for key in OWN:
        if resolved.origins.get(key) == COMMAND_LINE:
            raise UsageError(f"{key}: `hornbook adapt` sets it: leave it out")
    question = _question(words or [], from_, domain, general)
    texts = _texts([general, *domain])
    runs = {(share, seed): _runs(out, share, seed, len(domain)) for share in shares for seed in numbers}
    paths = [str(run.path) for chain in runs.values() for run in chain]
    plan: dict[str, Any] = {"runs": paths, "shares": shares, "seeds": numbers}
    _refuse_other(out, question)
    replay = f"data.replay.path={general.resolve()}"
    settings = {key: [replay, f"data.replay.share={key[0]}", f"seed={key[1]}"] for key in runs}
    for key, chain in runs.items():
        for run, data in zip(chain, domain, strict=True):
            _check_run(run, [*(words or []), f"data.path={data}", *settings[key]], Path(question["--from"]))
    if dry_run:
        return Result(plan, f"would train {len(paths)} runs in {out}; nothing written")
    with storage_errors(out):
        out.mkdir(parents=True, exist_ok=True)
        write_atomic(out / QUESTION, json.dumps(question, indent=1) + "\n")
    for (share, seed), chain in runs.items():
        before = question["--from"]
        for run, data in zip(chain, domain, strict=True):
            start = ["train", *(words or []), "--from", before, "--data", str(data), "--out", str(run.path)]
            code = _train(run, [*start, *settings[share, seed]])
            if code != Exit.DONE:
                text = f"{run.path} ended with exit code {code}, for the reason above; the same command continues it"
                return Result(plan | {"stopped": str(run.path)}, text, Exit(code) if code in set(Exit) else Exit.DEFECT)
            before = str(run.path)
    chained = len(domain) > 1
    found = _chains(question["--from"], runs, texts) if chained else _adaptation(runs, shares, numbers)
    files = _report(out, found, from_, domain, general)
    return Result(plan | found.as_dict() | {"files": files}, found.markdown() + "\n".join(files))


def _question(words: Sequence[str], model: Path, domain: Sequence[Path], general: Path) -> dict[str, Any]:
    """What all runs of a folder have in common; of a run that is adapted its newest checkpoint now."""
    from hornbook.run.checkpoints.find_checkpoint import checkpoint_path

    paths = {"--from": [checkpoint_path(model)], "--domain": domain, "--general": [general]}
    named = {name: ", ".join(str(each.resolve()) for each in group) for name, group in paths.items()}
    return {**named, "settings": list(words)}


def _runs(out: Path, share: float, seed: int, domains: int) -> list[RunDir]:
    """The runs of a share and a seed, one for each domain."""
    name = f"replay-{share:g}-seed-{seed}"
    return [RunDir(out / (name if domains == 1 else f"{name}-domain-{number + 1}")) for number in range(domains)]


def _texts(folders: Sequence[Path]) -> "list[Corpus]":
    """General text and the domains. Raises UsageError where one is there twice, or has nothing to evaluate on."""
    from hornbook.data.corpus import Corpus

    if len({folder.resolve() for folder in folders}) < len(folders):
        raise UsageError("--domain and --general name a folder twice: give different texts")
    found = [Corpus.open(folder) for folder in folders]
    for corpus in found:
        if not corpus.validation:
            raise UsageError(
                f"{corpus.root} holds no validation tokens, so nothing could be compared: tokenize it anew with a "
                f"larger share, `hornbook tokenize {quoted(corpus.root)} --text.validation 0.1 --overwrite`"
            )
    return found


def _check_run(run: RunDir, words: Sequence[str], model: Path) -> None:
    """Raise what the start of a new run would; IntegrityError where the data of one that is there changed since."""
    from hornbook.cli.train.dry_run import describe_job
    from hornbook.data.corpus import check_data_lock, open_corpus
    from hornbook.run.checkpoints.bound import recipe_in_force
    from hornbook.run.job.job import Start
    from hornbook.run.job.start.init_from import init_from_import
    from hornbook.run.launch.settle import settle_ranks

    if status_of(run) == "new":
        resolved, init_from = init_from_import(resolve_words(words), model)
        describe_job(settle_ranks(resolved, os.environ), run, Start(init_from=init_from, quiet=True))
        return
    data = recipe_in_force(run).data
    try:
        check_data_lock(run.data_lock, open_corpus(data, str(data.path)).lock())
    except IntegrityError as error:
        raise IntegrityError(f"{run.path}: {error}; `hornbook adapt` with another --out trains anew") from error


def _refuse_other(out: Path, question: dict[str, Any]) -> None:
    """UsageError where the runs in a folder are of another model, other data or other settings: they would go on."""
    path = out / QUESTION
    if not path.is_file() or not find_runs(out):
        return  # nothing was trained yet: settings that were refused may be mended
    with storage_errors(path):
        text = path.read_text(encoding="utf-8")
    try:
        there = dict(json.loads(text))
    except (ValueError, TypeError) as error:
        raise IntegrityError(f"{path} is not what `hornbook adapt` wrote: take another --out") from error
    for name, asked in question.items():
        if there.get(name) != asked:
            raise UsageError(f"{name}: the runs in {out} have {there.get(name)}, not {asked}: take another --out")


def _train(run: RunDir, start: Sequence[str]) -> int:
    """Train one run, or go on with it; returns its exit code. It is a process of its own, which ends with this one."""
    status = status_of(run)
    if status == "finished":
        return Exit.DONE
    words = list(start) if status == "new" else ["resume", str(run.path)]
    say(f"hornbook {words[0]} {run.path}")
    return subprocess.run(command(*words), check=False, stdout=subprocess.DEVNULL).returncode


def _chains(model: str, runs: "Runs", texts: "list[Corpus]") -> "Chains":
    """Losses on all texts of the model and of every run, on the rows that the first run reads."""
    import numpy as np

    from hornbook.run.checkpoints.bound import recipe_in_force
    from hornbook.run.diagnose.domain_transfer import Chain, Chains

    names = [corpus.root.name for corpus in texts]
    recipe = recipe_in_force(next(iter(runs.values()))[0])
    with progress_bar() as progress:

        def losses(target: Path) -> list[float]:
            subject = replace(open_subject(target), recipe=recipe)
            evaluators = [subject.evaluator(corpus) for corpus in texts]
            reports = [
                each.evaluate(subject.engine, each.rows(), with_tasks=False, progress=progress) for each in evaluators
            ]
            return [float(report.as_dict()["all"]["loss"]) for report in reports]

        before = losses(Path(model))
        rows = {key: [before, *(losses(run.path) for run in chain)] for key, chain in runs.items()}
    shares = dict.fromkeys(share for share, _ in runs)
    by_share = {share: np.array([each for key, each in rows.items() if key[0] == share]) for share in shares}
    return Chains([Chain(share, names, found) for share, found in by_share.items()])


def _adaptation(runs: "Runs", shares: list[float], seeds: list[int]) -> "Adaptation":
    from hornbook.run.checkpoints.bound import recipe_in_force
    from hornbook.run.diagnose.domain_transfer import DOMAINS, Adaptation, Stage, domain_losses

    stages: list[Stage] = []
    for share in shares:
        stage = Stage(share, {name: [] for name in DOMAINS}, {name: [] for name in DOMAINS})
        for seed in seeds:
            records = evaluations(runs[share, seed][0])
            for losses, record in ((stage.before, records[0]), (stage.after, records[-1])):
                for name, loss in domain_losses(record["sources"]).items():  # the same rows before and after
                    losses[name].append(loss)
            bits = [{name: score["bits_per_byte"] for name, score in records[k]["sources"].items()} for k in (0, -1)]
            for name, value in bits[0].items():
                stage.bits.setdefault(name, []).append((value, bits[1][name]))
        stages.append(stage)
    vocab = recipe_in_force(runs[shares[0], seeds[0]][0]).model.vocab
    assert vocab is not None, "a run's recipe has it"
    return Adaptation(stages, vocab)


def _report(out: Path, found: "Adaptation | Chains", model: Path, domain: Sequence[Path], general: Path) -> list[str]:
    """Write report.md, report.json and frontier.svg; returns their paths."""
    from hornbook.studio.frontier import frontier

    learned = ", then ".join(each.name for each in domain)
    title = f"{model.name} adapted to {learned}"
    where = learned if len(domain) == 1 else "the domains, mean"
    picture = frontier(title, f"loss on {general.name}, nats", f"loss on {where}, nats", _dots(found))
    asked = {"model": str(model), "domain": ", ".join(map(str, domain)), "general": str(general)}
    texts = {
        "report.md": f"# {title}\n\n{found.markdown()}\n![frontier](frontier.svg)\n",
        "report.json": json.dumps({**asked, **found.as_dict()}, indent=1) + "\n",
        "frontier.svg": picture,
    }
    with storage_errors(out):
        for name, content in texts.items():
            write_atomic(out / name, content)
    return [str(out / name) for name in texts]


def _dots(found: "Adaptation | Chains") -> "list[Dot]":
    """Loss on general text and on the domain: before, and with each share of replay."""
    from hornbook.run.diagnose.domain_transfer import Adaptation, SeedMean, share_name
    from hornbook.studio.frontier import Dot

    if isinstance(found, Adaptation):
        first = found.before["general"], found.before["domain"]
        ends = [
            (each.share, *(SeedMean.of(each.after[name]) for name in ("general", "domain"))) for each in found.stages
        ]
    else:
        losses = found.shares[0].losses[0, 0]
        first, ends = (losses[0], losses[1:].mean()), [(each.share, *each.final()) for each in found.shares]
    dots = [Dot(share_name(share), x.mean, y.mean, x.half or 0.0, y.half or 0.0) for share, x, y in ends]
    return [Dot("before", float(first[0]), float(first[1])), *dots]


def _shares(text: str) -> list[float]:
    try:
        pairs = [(word.strip().removesuffix("%"), word.strip().endswith("%")) for word in text.split(",")]
        values = [float(number) / (100 if percent else 1) for number, percent in pairs]
    except ValueError:
        values = [-1.0]
    if not all(0 <= value < 1 for value in values) or len(set(values)) < len(values):
        raise UsageError(f"--replay {text}: write different shares below 1, such as 0,1%,5%,25%")
    return values


def _seeds(text: str) -> list[int]:
    words = [word.strip() for word in text.split(",")]
    values = [int(word) for word in words if word.isdecimal()]
    if len(set(values)) < len(words):
        raise UsageError(f"--seeds {text}: write different whole numbers, such as 1,2,3")
    return values
