"""Compiles the kernels of a run on a CPU before its first step, on all cores."""

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
from hornbook.run.inputs import Inputs


def compile_for(inputs: Inputs) -> None:
    """Compile the missing kernels of training with these inputs, then load all: forks of this process inherit them."""
    model, train, index = inputs.recipe.model, inputs.recipe.train, inputs.loader.index
    data = [] if _data_is_ready() else [partial(_first_row, index)]
    compile_ahead([*data, *model_jobs(model, train, inputs.vocab)])
    kernels, bfloat16 = _kernels(model, train, inputs.vocab)
    for kernel in kernels:
        kernel.callback(bfloat16)


def model_jobs(model: ModelConfig, train: TrainConfig, vocab: int) -> list[Job]:
    """For each kernel of the model that is not compiled, the call that compiles it."""
    kernels, bfloat16 = _kernels(model, train, vocab)
    return [partial(kernel.callback, bfloat16) for kernel in kernels if not kernel.is_ready(bfloat16)]


def _kernels(model: ModelConfig, train: TrainConfig, vocab: int) -> tuple[list[Kernel], bool]:
    """(kernels of a model, whether it computes in bfloat16).

    There are none for a model that is not on the CPU, is traced, or computes in a dtype without kernels.
    """
    device = choose_device(train.device)
    precision = choose_precision(device).precision if train.precision == "auto" else train.precision
    dtype = PRECISIONS[precision]
    if device.type != "cpu" or train.compile or dtype not in (torch.bfloat16, torch.float32):
        return [], False
    return kernels_of(build_model(model, vocab, device="meta")), dtype == torch.bfloat16


def _data_is_ready() -> bool:
    """Whether the kernels that read data are compiled; every objective looks up positions first."""
    return is_ready(sampler._locate)


def _first_row(index: GlobalIndex) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # a fork has none of torch's threads
    try:
        index.batch(np.arange(1), 1)
    finally:
        torch.set_num_threads(threads)
