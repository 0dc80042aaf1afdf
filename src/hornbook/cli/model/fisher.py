"""`hornbook fisher`: how important each weight of a model is for a text."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hornbook.cli.model.subject import text_of
from hornbook.cli.result import Result
from hornbook.cli.shell import DryRun, Target
from hornbook.errors import UsageError
from hornbook.progress import progress_bar

if TYPE_CHECKING:
    from hornbook.model.transformer import Transformer
    from hornbook.parallel.engine import Engine
    from hornbook.parallel.gradients.fisher import Fisher
    from hornbook.settings.recipe import Recipe


def fisher(
    target: Target,
    *,
    out: Annotated[Path, typer.Option(metavar="FILE", help="File to write.")],
    data: Annotated[
        Path | None, typer.Option(help="A folder written by `hornbook tokenize`, instead of the run's own.")
    ] = None,
    rows: Annotated[int, typer.Option(min=1, help="Rows of training text.")] = 256,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the labels that the model draws.")] = 1,
    dry_run: DryRun = False,
) -> Result:
    """Estimate the diagonal of a model's Fisher information, which `train.loss.anchor` holds weights by.

    Train on other text with `--from RUN --train.loss.anchor.kind ewc --train.loss.anchor.fisher FILE`.
    """
    from hornbook.model.storage.load import load_model
    from hornbook.parallel.gradients.fisher import write_fisher
    from hornbook.run.checkpoints.find_checkpoint import checkpoint_path

    folder = checkpoint_path(target)
    loaded = load_model(folder)
    if (loaded.config.kind, loaded.config.head.kind) != ("decoder", "lm"):
        raise UsageError(f"{folder} is no causal language model: the Fisher information is taken of those alone")
    recipe, path, sequence = text_of(folder, loaded, data)
    own = recipe.data if data is None else recipe.data.model_copy(update={"weights": {}, "stages": []})
    value: dict[str, Any] = {"source": str(folder), "out": str(out), "rows": rows}
    if out.is_dir():
        raise UsageError(f"--out {out}: a folder is there: name a file")
    if dry_run:
        text = f"would write {out}: Fisher information of {folder} on {rows} rows of {path}; nothing written"
        return Result(value | {"dry_run": True}, text)
    settings = recipe.model_copy(update={"data": own})
    found, engine = _diagonal(settings, loaded.model, path, sequence, rows, seed)
    write_fisher(out, found, engine)
    total = sum(float(tensor.double().sum()) for tensor in found.importance.values())
    value |= {"tokens": found.tokens, "trace": total}
    return Result(value, f"{out}: Fisher information of {folder} over {found.tokens:,} tokens, trace {total:.4g}")


def _diagonal(
    recipe: "Recipe", model: "Transformer", path: str, sequence: int, rows: int, seed: int
) -> "tuple[Fisher, Engine]":
    """Of the first rows of the text at `path`, as the recipe's [data] reads it."""
    import numpy as np

    from hornbook.data.config.data import NoCurriculum, ReplayConfig
    from hornbook.data.loader.loader import build_loader
    from hornbook.optim.config.batch_schedule import NoRamp
    from hornbook.parallel.config import ParallelConfig
    from hornbook.parallel.gradients.fisher import fisher_diagonal
    from hornbook.parallel.parallelize import parallelize

    # The text as it is: the first rows of a run may be easy ones, and cut into short parts.
    whole = {"replay": ReplayConfig(), "curriculum": NoCurriculum(), "sequence_ramp": NoRamp()}
    settings = recipe.data.model_copy(update=whole)
    index = build_loader(settings, path, sequence=sequence, micro_batch=1, seed=recipe.seed, prefetch=False).index
    train = recipe.train.model_copy(update={"device": "auto", "precision": "fp32", "compile": False})
    engine = parallelize(model, ParallelConfig(), train)
    with progress_bar() as progress:

        def each() -> Any:
            for number in range(rows):
                progress("take gradients", number, rows)
                yield index.batch(np.array([number]), 1).batches[0]

        return fisher_diagonal(engine, each(), seed), engine
