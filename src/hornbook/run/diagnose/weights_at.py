"""The model as it was before a step of a run, to look at what the step read."""

from pathlib import Path

from hornbook.errors import UsageError
from hornbook.files.filesystem import is_folder
from hornbook.files.run_directory import RunDir
from hornbook.model.storage.load import load_model
from hornbook.model.surgery.added_values import with_added
from hornbook.model.surgery.operate import build_operated
from hornbook.parallel.config import ParallelConfig
from hornbook.parallel.engine import Engine
from hornbook.parallel.parallelize import parallelize
from hornbook.run.checkpoints.bound import recipe_in_force, why_foreign
from hornbook.run.checkpoints.commit import list_checkpoints, step_of
from hornbook.run.checkpoints.manifest import verify_folder
from hornbook.run.job.run_inputs import Inputs, open_inputs
from hornbook.run.job.start.init_from import InitFrom
from hornbook.run.ledger.ledger import Monotone, read_past
from hornbook.settings.recipe import Recipe
from hornbook.settings.resolve import Resolved
from hornbook.settings.training import TrainConfig


def weights_before(run: RunDir, step: int) -> tuple[Engine, str]:
    """(the model with weights that have not learned from `step` yet, where they are from).

    From the newest checkpoint before the step, else from the initial checkpoint or the initial values. UsageError where
    none of them is there.
    """
    past, recipe = read_past(run), recipe_in_force(run, before=step)
    folder = newest_before(run, past, step)
    initial = InitFrom.from_record(past.init_from)
    if folder is None and initial is not None:
        if not is_folder(initial.checkpoint) or initial.new_head:
            raise UsageError(
                f"{run.path} has no checkpoint from before step {step:,}, and {initial.checkpoint}, which it started "
                "from, is not there or had another head"
            )
        folder = initial.checkpoint
    if folder is not None:
        loaded = load_model(folder)
        tokens = None if loaded.tokenizer is None else loaded.tokenizer.vocab_size
        return parallelize(loaded.model, ParallelConfig(), _here(recipe), num_tokens=tokens), str(folder)
    return _initial(open_inputs(Resolved(recipe, {}))), "the initial values"


def newest_before(run: RunDir, past: Monotone, step: int) -> Path | None:
    """The newest checkpoint of the run from before a step, verified. IntegrityError where it is damaged."""
    for folder in list_checkpoints(run.checkpoints):
        if (step_of(folder) or 0) < step and why_foreign(run, past, verify_folder(folder)) is None:
            return folder
    return None


def _initial(inputs: Inputs) -> Engine:
    recipe = inputs.recipe
    if recipe.model.init.kind == "lsuv":
        raise UsageError("the initial values of model.init.kind lsuv depend on the first batch: no checkpoint, no loss")
    model = build_operated(recipe.model, inputs.vocab, recipe.surgery)
    engine = parallelize(model, ParallelConfig(), _here(recipe), num_tokens=inputs.tokenizer.vocab_size)
    engine.load_stream(with_added(engine.model, inputs.initial_values(), recipe.seed))
    return engine


def _here(recipe: Recipe) -> TrainConfig:
    """The training settings on the best device of this machine, whatever the run used."""
    return recipe.train.model_copy(update={"device": "auto", "compile": False})
