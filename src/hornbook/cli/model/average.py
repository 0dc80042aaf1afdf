"""`hornbook average`: the mean of the weights of several checkpoints of one model."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hornbook.cli.model.out_folder import check_free, new_model, report_text, tell_left_out, with_tokenizer
from hornbook.cli.result import Result
from hornbook.cli.shell import DryRun
from hornbook.errors import UsageError
from hornbook.files.filesystem import require_local

if TYPE_CHECKING:
    from hornbook.model.config.model_config import ModelConfig


def average(
    targets: Annotated[
        list[str], typer.Argument(metavar="RUN[@STEP]|CHECKPOINT", help="Checkpoints of one model, or one run.")
    ],
    *,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder to write; new or empty.")],
    last: Annotated[int | None, typer.Option(min=1, help="Take the newest so many checkpoints of the run.")] = None,
    weights: Annotated[str | None, typer.Option(metavar="W,W...", help="Weight of each, by default equal.")] = None,
    dry_run: DryRun = False,
) -> Result:
    """Write the mean of the weights of several checkpoints as a Hugging Face folder.

    Averages of the last checkpoints of a run with a high learning rate are often better than each of them.
    """
    from hornbook.model.surgery.folders import decoder_start_of, read_merged
    from hornbook.model.surgery.mean import mean_tensors, write_streamed

    folders = _folders(targets, last)
    numbers = _numbers(weights, len(folders))
    shares = [number / sum(numbers) for number in numbers]
    check_free(out)
    models = [read_merged(folder) for folder in folders]
    config, vocab, _, tokenizer = models[0]
    for folder, (other, rows, _, beside) in zip(folders[1:], models[1:], strict=True):
        _refuse_other(folders[0], folder, (config, vocab, tokenizer), (other, rows, beside))
    report: dict[str, Any] = {"sources": [str(folder) for folder in folders], "weights": shares, "out": str(out)}
    tell_left_out(folders[0], report)
    if dry_run:
        text = f"would write {out}: the mean of {len(folders)} checkpoints; nothing written"
        return Result(report | {"dry_run": True}, text)
    with new_model(out, "average", folders[0], report, folders[1:]) as partial:
        stream = mean_tensors([model[2] for model in models], numbers)
        write_streamed(partial, stream, config, vocab, with_tokenizer(tokenizer), decoder_start_of(folders[0]))
    return Result(report, report_text(out, report["files"], f"the mean of {len(folders)} checkpoints"))


def _folders(targets: list[str], last: int | None) -> list[Path]:
    """The checkpoints that the words name. UsageError if they are no two different ones."""
    from hornbook.files.run_directory import RunDir
    from hornbook.run.checkpoints.commit import list_checkpoints
    from hornbook.run.checkpoints.manifest import verify_folder

    if last is None:
        folders = [_folder(target) for target in targets]
    else:
        if len(targets) != 1 or not (there := list_checkpoints(RunDir(Path(targets[0])).checkpoints)):
            raise UsageError("--last takes the newest checkpoints of one run: name a run that has some")
        if last > len(there):
            raise UsageError(f"--last {last}: {targets[0]} has {len(there)} checkpoints (checkpoint.keep keeps more)")
        folders = there[:last]
        for folder in folders:
            verify_folder(folder)
    if len(set(folders)) < len(folders) or len(folders) < 2:
        raise UsageError("an average is of two or more different checkpoints: name RUN@STEP RUN@STEP, or RUN --last 5")
    return folders


def _folder(target: str) -> Path:
    from hornbook.run.checkpoints.find_checkpoint import checkpoint_path

    path, _, step = require_local(target).rpartition("@")
    if path and step.isdigit() and not Path(target).exists():
        return checkpoint_path(Path(path), int(step))
    return checkpoint_path(target)


def _numbers(weights: str | None, count: int) -> list[float]:
    """The weight of each."""
    if weights is None:
        return [1.0] * count
    try:
        numbers = [float(word) for word in weights.split(",")]
    except ValueError:
        raise UsageError(f"--weights {weights}: write numbers such as 1,2,1") from None
    if len(numbers) != count or not all(0 < number < float("inf") for number in numbers):
        raise UsageError(f"--weights {weights}: give {count} numbers above 0, one for each checkpoint")
    return numbers


def _refuse_other(
    first: Path, second: Path, one: "tuple[ModelConfig, int, Path]", other: "tuple[ModelConfig, int, Path]"
) -> None:
    """Raise UsageError unless both models have the same shape and the same tokenizer."""
    from hornbook.settings.resume_rules import TRAINING_ONLY
    from hornbook.settings.schema import leaves

    values = [dict(leaves(model.model_copy(update={"vocab": rows}))) for model, rows, _ in (one, other)]
    keys = [".".join(map(str, path)) for path in values[0] | values[1] if path[0] not in TRAINING_ONLY]
    differing = [key for key in keys if values[0].get(tuple(key.split("."))) != values[1].get(tuple(key.split(".")))]
    if differing:
        listed = ", ".join(f"model.{key}" for key in differing)
        raise UsageError(f"{first} and {second} are not of one model: they differ in {listed}")
    texts = [folder / "tokenizer.json" for _, _, folder in (one, other)]
    if all(text.is_file() for text in texts) and texts[0].read_bytes() != texts[1].read_bytes():
        raise UsageError(f"{first} and {second} have different tokenizers: their rows stand for other tokens")
