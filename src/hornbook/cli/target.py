"""RUN|CHECKPOINT on the command line -> one checkpoint folder, for the verbs that read a model."""

from pathlib import Path


def find_checkpoint(target: Path) -> Path:
    """The folder itself if it is a checkpoint, the newest checkpoint that verifies if it is a run.

    Any Hugging Face folder with safetensors is a checkpoint. Errors: UsageError, IntegrityError.
    """
    from hornbook.run.checkpoint import checkpoint_path

    return checkpoint_path(target)
