"""Everything a run on a CPU has to compile is compiled before its first step, on all cores."""

from functools import partial

import numpy as np
import torch

from hornbook.compile_ahead import Job, compile_ahead
from hornbook.data import order
from hornbook.data.global_index import GlobalIndex
from hornbook.kernel_cache import is_ready
from hornbook.model.build import build_model
from hornbook.model.cpu.team import Kernel
from hornbook.model.cpu_kernels import kernels_of
from hornbook.parallel.engine import PRECISIONS
from hornbook.parallel.mesh import choose_device
from hornbook.recipe import Recipe
from hornbook.run.job import Inputs


def compile_for(inputs: Inputs) -> None:
    """Compile what training with these inputs needs and is not on disk, then load it: forks of this process have it."""
    compile_ahead([*_jobs_of_model(inputs.recipe, inputs.vocab), *_jobs_of_data(inputs)])
    for kernel in _kernels(inputs.recipe, inputs.vocab):
        kernel.callback(_is_bf16(inputs.recipe))


def left_to_compile(recipe: Recipe, vocab: int) -> int:
    """How many kernels training with this recipe would have to compile here; those of the data count as one."""
    return len(_jobs_of_model(recipe, vocab)) + (not is_ready(order._locate))


def _jobs_of_model(recipe: Recipe, vocab: int) -> list[Job]:
    bfloat16 = _is_bf16(recipe)
    missing = [kernel for kernel in _kernels(recipe, vocab) if not kernel.is_ready(bfloat16)]
    return [partial(kernel.callback, bfloat16) for kernel in missing]


def _jobs_of_data(inputs: Inputs) -> list[Job]:
    return [] if is_ready(order._locate) else [partial(_first_row, inputs.loader.index)]


def _first_row(index: GlobalIndex) -> None:
    index.batch(np.arange(1), 1)


def _kernels(recipe: Recipe, vocab: int) -> list[Kernel]:
    """None where the model is not on the CPU, is traced, or computes in a dtype that kernels do not know."""
    train = recipe.train
    known = PRECISIONS[train.precision] in (torch.bfloat16, torch.float32)
    if choose_device(train.device).type != "cpu" or train.compile or not known:
        return []
    return kernels_of(build_model(recipe.model, vocab, device="meta"))


def _is_bf16(recipe: Recipe) -> bool:
    return PRECISIONS[recipe.train.precision] == torch.bfloat16
