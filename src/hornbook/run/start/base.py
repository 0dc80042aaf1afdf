"""A run's copy of the frozen base that its adapters belong to: `RUN/base`, written once.

Checkpoints hold the adapter alone, and the run no longer needs the checkpoint it was started from.
"""

import dataclasses
import shutil
from pathlib import Path

from hornbook.errors import IntegrityError
from hornbook.files.durable import storage_errors, writing_folder
from hornbook.files.filesystem import exists, is_file, list_folder
from hornbook.model.build import build_model
from hornbook.model.hf.hf import read_hf, write_hf
from hornbook.model.init.init import initial_values, with_new_head
from hornbook.model.surgery.adapters.files import base_of, check_base, is_adapter, read_meta, tensors_digest
from hornbook.run.checkpoints.path import newest_verified
from hornbook.run.job import Job
from hornbook.run.start.init_from import InitFrom
from hornbook.run.state import State

KEPT = ("*.json", "*.safetensors", "*.model", "*.txt")
"""Files of a model folder that are copied into a base."""


def keep_base(job: Job, state: State, init_from: InitFrom | None) -> None:
    """Write `RUN/base` if it is not there, and set `state.spec.base_digest`. Only rank 0 does.

    init_from: the initial checkpoint; None: initial values, or the run goes on. Raises StorageError, and IntegrityError
    where the base is not that of the run's newest checkpoint.
    """
    if not job.output.is_rank0:
        return
    base = job.run.base
    if not exists(base):
        _publish_base(job, init_from, base)
    digest = tensors_digest(read_hf(base)[2])
    newest = newest_verified(job.run.checkpoints)
    if newest is not None:
        check_base(newest, read_meta(newest).base_digest, digest, base)
    state.spec = dataclasses.replace(state.spec, base_digest=digest)


def _publish_base(job: Job, init_from: InitFrom | None, base: Path) -> None:
    with storage_errors(base), writing_folder(base) as stage:
        if init_from is None:
            _write_initial(job, stage)
        elif init_from.new_head:  # the head that the adapters belong to is not in the checkpoint
            model, vocab = job.inputs.recipe.model, job.inputs.vocab
            values = with_new_head(read_hf(init_from.checkpoint)[2], model, vocab, job.inputs.recipe.seed)
            write_hf(stage, values, model, vocab, job.inputs.corpus.root / "tokenizer")
        else:
            source = base_of(init_from.checkpoint) if is_adapter(init_from.checkpoint) else init_from.checkpoint
            for path in sorted({path for pattern in KEPT for path in list_folder(source, pattern)}):
                if is_file(path) and path.name != "MANIFEST.json":
                    shutil.copyfile(path, stage / path.name)


def _write_initial(job: Job, stage: Path) -> None:
    if job.start.mode == "resume" and newest_verified(job.run.checkpoints) is not None:
        raise IntegrityError(f"{job.run.base}, the base of this run's adapters, is gone: put it back")
    inputs = job.inputs
    plain = build_model(inputs.recipe.model, inputs.vocab, "meta")
    values = initial_values(plain, inputs.recipe.model, inputs.recipe.seed)
    tokenizer, start = inputs.corpus.root / "tokenizer", inputs.decoder_start
    write_hf(stage, values, inputs.recipe.model, inputs.vocab, tokenizer, decoder_start=start)
