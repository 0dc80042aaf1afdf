"""Everything a run on a CPU has to compile is compiled before its first step, on all cores."""

from functools import partial

import numpy as np
import torch

from hornbook.data.loader.global_index import GlobalIndex
from hornbook.data.order import sampler
from hornbook.kernels.ahead import Job, compile_ahead
from hornbook.kernels.cache import is_ready
from hornbook.model.build import build_model
from hornbook.model.config.model import ModelConfig
from hornbook.model.cpu.kernels import kernels_of
from hornbook.model.cpu.team import Kernel
from hornbook.model.layers.precision import choose_precision
from hornbook.parallel.parallelize import PRECISIONS
from hornbook.parallel.world import choose_device
from hornbook.run.config import TrainConfig
from hornbook.run.job import Inputs


def compile_for(inputs: Inputs) -> None:
    """Compile what training with these inputs needs and is not on disk, then load it: forks of this process have it."""
    model, train, index = inputs.recipe.model, inputs.recipe.train, inputs.loader.index
    data = [] if _data_is_ready() else [partial(_first_row, index)]
    compile_ahead([*data, *model_jobs(model, train, inputs.vocab)])
    kernels, bfloat16 = _kernels(model, train, inputs.vocab)
    for kernel in kernels:
        kernel.callback(bfloat16)


def left_to_compile(model: ModelConfig, train: TrainConfig, vocab: int) -> int:
    """How many kernels such a training would have to compile here; those that read the data count as one.

    `kernels.ahead.expected_seconds` says how long that takes.
    """
    return len(model_jobs(model, train, vocab)) + (not _data_is_ready())


def model_jobs(model: ModelConfig, train: TrainConfig, vocab: int) -> list[Job]:
    """Each kernel of the model that is not compiled, as the job of compiling it."""
    kernels, bfloat16 = _kernels(model, train, vocab)
    return [partial(kernel.callback, bfloat16) for kernel in kernels if not kernel.is_ready(bfloat16)]


def _kernels(model: ModelConfig, train: TrainConfig, vocab: int) -> tuple[list[Kernel], bool]:
    """The kernels of a model, and whether it computes in bfloat16.

    There are none where it is not on the CPU, is traced, or computes in a dtype that kernels do not know.
    """
    device = choose_device(train.device)
    precision = choose_precision(device).precision if train.precision == "auto" else train.precision
    dtype = PRECISIONS[precision]
    if device.type != "cpu" or train.compile or dtype not in (torch.bfloat16, torch.float32):
        return [], False
    return kernels_of(build_model(model, vocab, device="meta")), dtype == torch.bfloat16


def _data_is_ready() -> bool:
    """Whether rows were ever read here: whatever the objective, their places are looked up first."""
    return is_ready(sampler._locate)


def _first_row(index: GlobalIndex) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # a fork has none of the threads that torch began
    try:
        index.batch(np.arange(1), 1)
    finally:
        torch.set_num_threads(threads)
