"""`hornbook eval --harness`: lm-eval's tasks on a run, a checkpoint or a model."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from hornbook.cli.result import Result, table
from hornbook.errors import UsageError
from hornbook.progress import Progress

if TYPE_CHECKING:
    from rich.table import Table


def evaluate_with_harness(
    target: Path, tasks: str, include: Path | None, progress: Progress, *, bos: bool, average: bool
) -> Result:
    """Metrics of lm-eval's tasks, named with commas between."""
    from hornbook.evals.harness import run_harness
    from hornbook.evals.task import ModelContext
    from hornbook.model.storage.load import load_model
    from hornbook.parallel.config import ParallelConfig
    from hornbook.parallel.parallelize import parallelize
    from hornbook.run.checkpoints.find_checkpoint import checkpoint_path
    from hornbook.settings.training import TrainConfig

    folder = checkpoint_path(target)
    loaded = load_model(folder, average=average)
    engine = parallelize(loaded.model, ParallelConfig(), TrainConfig(device="auto", precision="fp32"))
    context = ModelContext(
        tokenizer=loaded.require_tokenizer(),
        sequence=loaded.config.position.length,
        micro_batch=TrainConfig().micro_rows,
        seed=0,
        model=loaded.config,
        proceed=lambda: True,
    )
    progress("run lm-eval", 0, None)
    found = run_harness(engine, engine.world, context, [each.strip() for each in tasks.split(",")], include, bos=bos)
    results = {name: _metrics(values) for name, values in found["results"].items()}
    if not any(set(values) - {"sample_len"} for values in results.values()):
        raise UsageError(f"lm-eval gave no figure of {tasks}: correct metric_list in the task's yaml")
    versions = {name: found["versions"].get(name) for name in results}
    value = {
        "checkpoint": str(folder),
        "harness": results,
        "versions": versions,
        "lm_eval": found.get("lm_eval_version"),
    }
    return Result(value, notes=[_table(str(folder), results)])


def _metrics(values: dict[str, Any]) -> dict[str, float]:
    """Numbers by name, without the filter that lm-eval calls none."""
    numbers = {name: value for name, value in values.items() if isinstance(value, int | float)}
    return {name.removesuffix(",none").replace("_stderr", "_se"): float(value) for name, value in numbers.items()}


def _table(title: str, results: dict[str, dict[str, float]]) -> "Table":
    made = table(title, ["task", "metric"], ["value", "standard error"])
    for task, metrics in results.items():
        for name, value in metrics.items():
            if not name.endswith("_se") and name != "sample_len":
                error = metrics.get(f"{name}_se")
                made.add_row(task, name, f"{value:.4f}", "" if error is None else f"{error:.4f}")
    return made
