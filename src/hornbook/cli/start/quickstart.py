"""`hornbook quickstart`: train and export a model on the text of this Python installation, offline."""

import json
import os
import platform
import shutil
import signal
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from hornbook.cli.child import hornbook
from hornbook.cli.result import Result
from hornbook.cli.shell import say
from hornbook.cli.start import demo
from hornbook.errors import UsageError, quoted
from hornbook.files.run_directory import RunDir
from hornbook.progress import escape_controls, progress_bar

DEFAULT_SECONDS = 180.0


def quickstart(
    keep: Annotated[Path | None, typer.Option(help="Keep all files of the demo in this new folder.")] = None,
    seconds: Annotated[
        float | None,
        typer.Option(help=f"Time limit, {DEFAULT_SECONDS:.0f} by default; the model size is chosen to fit."),
    ] = None,
    size: Annotated[
        str | None, typer.Option(help="Fix the model size: xs, s, m, l or xl. The same size gives the same numbers.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the planted duplicates and of the model.")] = 1,
) -> Result:
    """Train a language model on this machine in about three minutes, without a GPU or a network."""
    pinned = _pinned(size)
    if keep is not None and keep.exists() and (not keep.is_dir() or any(keep.iterdir())):
        raise UsageError(f"{keep} is not an empty folder: choose a new one for --keep")
    folder = Path(keep) if keep is not None else Path(tempfile.mkdtemp(prefix="hornbook-"))
    folder.mkdir(parents=True, exist_ok=True)
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:  # under nohup, a closed terminal must not end the demo
            signal.signal(number, _interrupt)
    try:
        measured = _film(folder.resolve(), pinned, seconds, seed)
    except BaseException:
        if keep is None:
            shutil.rmtree(folder, ignore_errors=True)
        raise
    _farewell(folder, kept=keep is not None)
    return Result(measured | {"folder": str(folder)})


def _interrupt(number: int, frame: object) -> None:  # noqa: ARG001
    """End as after Ctrl-C: kill child processes and remove temporary files."""
    raise KeyboardInterrupt


def _pinned(name: str | None) -> demo.Size | None:
    sizes = {size.name: size for size in demo.SIZES}
    if name is not None and name not in sizes:
        raise UsageError(f"there is no size {name!r}: choose one of {', '.join(sizes)}")
    return sizes[name] if name is not None else None


def _film(folder: Path, pinned: demo.Size | None, seconds: float | None, seed: int) -> dict[str, object]:
    """Run all stages in order; returns the measurements of the demo."""
    begun = time.monotonic() - time.process_time()  # the imports before this line count
    machine, size, limit = _machine(pinned, seconds, begun)
    raw, data, run, recipe = folder / "raw", folder / "data", RunDir(folder / "run"), folder / "demo.toml"
    recipe.write_text(demo.recipe_text(size, raw))
    stages = {"probe": time.monotonic() - begun}
    measured: dict[str, object] = {"seed": seed}
    measured |= _scene("1. Clean the text", stages, lambda: _clean(raw, recipe, data, size, seed))
    measured |= _scene("2. Train a tokenizer", stages, lambda: _tokenize(data))
    left = limit - (time.monotonic() - begun)
    train_seconds = None if machine is None else machine.train_seconds(left)
    measured |= {"size": size.name, "train_seconds": train_seconds}
    plan = f"size {size.name}: {_reason(machine, size, left)}"
    play = partial(_train, recipe, data, run, size, train_seconds, seed)
    measured |= _scene("3. Train, kill, resume", stages, play, plan)
    measured |= _scene("4. Evaluate on text it has never seen", stages, lambda: _evaluate(run))
    measured |= _scene("5. Export", stages, lambda: _export(run, folder / "model"))
    measured["stages"] = {name: round(spent, 1) for name, spent in stages.items()}
    measured["seconds"] = round(time.monotonic() - begun, 1)
    say(f"\n[bold]Done in {measured['seconds']} s.[/]")
    return measured


def _scene(
    title: str, stages: dict[str, float], play: Callable[[], dict[str, object]], *lines: str
) -> dict[str, object]:
    say("\n".join([f"\n[bold cyan]{title}[/]", *lines]))
    begun = time.monotonic()
    measured = play()
    stages[title] = time.monotonic() - begun
    return measured


def _command(*words: str | Path) -> tuple[str | Path, ...]:
    """Print the command as a person would type it, and return its words."""
    say("[dim]$ hornbook " + " ".join(str(word) for word in words) + "[/]")
    return words


def _machine(
    pinned: demo.Size | None, seconds: float | None, begun: float
) -> tuple[demo.Machine | None, demo.Size, float]:
    """(this machine, the size, the time limit); a pinned size is trained whole, however long it takes."""
    place = f"{platform.system()} {platform.machine()} · {os.cpu_count()} cores · Python {platform.python_version()}"
    say(f"[bold]hornbook quickstart[/]   {place}")
    if pinned is not None:
        say(f"size {pinned.name} (pinned)")
        return None, pinned, 0.0
    limit = DEFAULT_SECONDS if seconds is None else seconds
    say(f"Measuring this machine, to choose a size that ends within {limit:g} s (--size sets it instead).")
    with progress_bar() as progress:
        progress("look at the machine", 0, None)
        machine = demo.measure_machine()
    spent = time.monotonic() - begun
    size = machine.choose(limit - spent)
    rate = f"{1 / machine.token:,.0f} tokens/s"
    say(f"A process starts in {machine.start:.1f} s and trains the smallest size at {rate} in {machine.precision}.")
    needed = spent + machine.seconds(size)
    if needed > limit:
        few = f"{limit:g} s are too few for this machine as it is now"
        say(f"[bold]{few}: the smallest demo takes about {needed:.0f} s.[/]")
    return machine, size, max(limit, needed)


def _reason(machine: demo.Machine | None, size: demo.Size, left: float) -> str:
    """Why this size is trained."""
    if machine is None:
        return "pinned"
    whole = "the largest" if size in demo.SIZES else f"cut to {size.steps} steps"
    return f"{whole} for the {left:.0f} s left at {machine.precision}, {1 / machine.token_of(size):,.0f} tokens/s"


def _clean(raw: Path, recipe: Path, data: Path, size: demo.Size, seed: int) -> dict[str, object]:
    from hornbook.text.ingest.corpora.installed import score, write_installed_corpus

    planted = write_installed_corpus(raw, max_bytes=size.corpus_bytes, seed=seed)
    say("The text comes with every Python installation: code and its docstrings. We planted duplicates in it.")
    hornbook(*_command("prepare", recipe, "--out", data))
    precision, recall = score(data, planted)
    say(f"Recall: {recall:.1%} of duplicates were dropped. Precision: {precision:.1%} of the dropped are duplicates.")
    return {"dedup_precision": precision, "dedup_recall": recall}


def _tokenize(data: Path) -> dict[str, object]:
    hornbook(*_command("tokenize", data))
    merges = json.loads((data / "tokenizer" / "tokenizer.json").read_text())["model"]["merges"]
    shown = " ".join(repr("".join(pair).replace("Ġ", " ").replace("Ċ", "\\n")) for pair in merges[:12])
    say(f"Its first merges: {shown}")
    return {"vocab": demo.VOCAB}


def _train(
    recipe: Path, data: Path, run: RunDir, size: demo.Size, seconds: float | None, seed: int
) -> dict[str, object]:
    limit = () if seconds is None else ("--train.seconds", f"{seconds:.0f}")
    words = _command("train", recipe, "--data", data, "--out", run.path, "--seed", str(seed), *limit)
    last = demo.train_and_kill(words, run)
    if last is not None:
        say(f"\n[bold red]Killed the worker with SIGKILL after step {last:,}[/], well past its last save. Now resume:")
        hornbook(*_command("resume", run.path))
    kill, losses = demo.compare_attempts(run), demo.losses(run)
    steps = max(losses)
    measured: dict[str, object] = {"resumed_loss_equal": None, "loss": losses[steps], "steps": steps}
    measured |= {"tokens": steps * demo.BATCH_TOKENS, "planned_steps": size.steps}
    if steps < size.steps:
        say(f"Steps were slower than measured: the run was shortened from {size.steps:,} to {steps:,} steps.")
    if kill is None:
        say("The run ended before its worker could be killed.")
        return measured
    sign = "=" if kill.before == kill.after else "is not"
    say(f"Loss at step {kill.step:,}: {kill.after!r} after the resume {sign} {kill.before!r} before the kill.")
    return measured | {"resumed_loss_equal": kill.before == kill.after}


def _evaluate(run: RunDir) -> dict[str, object]:
    answer = json.loads(hornbook(*_command("eval", run.path, "--baselines", "--json"), capture=True))
    model, baselines = answer["bits_per_byte"], answer["baselines"]
    rows = [
        ("unigram model of the same tokens", baselines["unigram"]),
        ("gzip -9, each document alone", baselines["gzip_per_document"]),
        ("gzip -9, all documents in one stream", baselines["gzip_concatenated"]),
        ("the model you just trained", model),
    ]
    for name, bits in rows:
        say(f"  {bits:6.3f} bits per byte   {name}")
    best = min(baselines["gzip_per_document"], baselines["gzip_concatenated"])
    verdict = "better" if model < best else "worse"
    say(f"It predicts held-out text {abs(1 - model / best):.0%} {verdict} than gzip compresses it.")
    return {"bits_per_byte": model, "baselines": baselines} | _show_text(run)


def _export(run: RunDir, out: Path) -> dict[str, object]:
    answer = json.loads(hornbook(*_command("export", run.path, "--to", "hf", "--out", out, "--json"), capture=True))
    say(f"A Hugging Face model in {out}.")
    return {"certificate": answer.get("certificate")}


def _show_text(run: RunDir) -> dict[str, object]:
    """Show the newest text that the model wrote while it was trained."""
    sample = json.loads(max(run.samples.glob("step-*.json")).read_text(encoding="utf-8"))
    text = sample["prompt"] + sample["text"]
    say(f"A text that it wrote after its prompt {sample['prompt']!r}, with what little it has read:")
    say("\n".join(f"  | {escape(escape_controls(line))}" for line in text.splitlines()))
    return {"text": text}


def _farewell(folder: Path, *, kept: bool) -> None:
    say("\nNext:")
    say(f'  hornbook generate {quoted(folder / "run")} -p "def"')
    if not kept:
        say(f"  rm -r {quoted(folder)}   deletes the files of this demo; --keep FOLDER puts them elsewhere")
    say("  hornbook prepare YOUR_TEXT --out data/mine    your own text: files, folders, jsonl, parquet")
    say("  hornbook recipes ls                           recipes to train on it")
