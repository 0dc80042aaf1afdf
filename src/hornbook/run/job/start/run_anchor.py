"""The weights that a run holds (`train.loss.anchor`): it keeps a copy of their Fisher information."""

import shutil
from pathlib import Path

from hornbook.errors import UsageError
from hornbook.files.durable import publish_file, storage_errors, temporary_name
from hornbook.files.filesystem import exists
from hornbook.files.run_directory import RunDir
from hornbook.model.surgery.adapters.adapter_files import tensors_digest
from hornbook.model.surgery.folders import read_merged
from hornbook.parallel.gradients.fisher import FisherFile
from hornbook.run.checkpoints.state import State
from hornbook.run.job.job import Job, Start
from hornbook.run.job.start.init_from import InitFrom
from hornbook.settings.training import AnchorConfig, ElasticAnchor


def hold_weights(job: Job, state: State, init_from: InitFrom | None) -> None:
    """Have the engine hold the weights that the recipe names, if any. Every rank calls it.

    Raises UsageError where the Fisher information is that of another model than the run starts from, IntegrityError
    where it is damaged, StorageError.
    """
    anchor, copy = job.recipe.train.loss.anchor, job.run.fisher
    if not isinstance(anchor, ElasticAnchor):
        return
    if job.output.is_rank0 and not exists(copy):
        keep_fisher(_fisher_of(anchor, init_from), copy)
    state.engine.world.barrier()
    state.engine.penalties.anchor(FisherFile(copy).read)


def check_anchor(anchor: AnchorConfig, start: Start) -> None:
    """Raise as `hold_weights` where a new run would not have the weights that it is to hold."""
    if start.mode != "resume" and isinstance(anchor, ElasticAnchor):
        _fisher_of(anchor, start.init_from)


def _fisher_of(anchor: ElasticAnchor, init_from: InitFrom | None) -> Path:
    """The file of the weights that a run holds. Raises as `hold_weights`."""
    path = Path(anchor.fisher)
    if init_from is None:
        raise UsageError(
            "train.loss.anchor: a run that starts from initial values has nothing to hold: name the trained model with "
            "`hornbook train --from`, or leave the anchor out"
        )
    held = RunDir(init_from.checkpoint.parent.parent).fisher
    if init_from.kind != "import" and exists(held) and not _is_other(path, held):
        return held  # the weights that the parent holds, and not those that it has come to
    FisherFile(path).check(tensors_digest(read_merged(init_from.checkpoint)[2]), init_from.checkpoint)
    return path


def keep_fisher(path: Path, copy: Path) -> None:
    """Copy Fisher information to where a run keeps its own. Raises StorageError."""
    with storage_errors(copy):
        temporary = temporary_name(copy)
        shutil.copyfile(path, temporary)
        publish_file(temporary, copy)


def _is_other(path: Path, held: Path) -> bool:
    """Whether a file is there and is not about the weights that the parent holds."""
    return exists(path) and FisherFile(path).digest != FisherFile(held).digest
