"""Rows computed at once: `train.micro_batch = "auto"` when a run starts, and fewer of them where memory runs out.

`auto` becomes the largest micro-batch that divides every step of a rank and fits by the closed form of what training
holds (`hornbook.model.config.saved_bytes`); the recipe of the run keeps the number. Where a step runs out of memory all
the same, it is computed again with the largest proper divisor of the micro-batch: the same rows, tokens and loss, up to
the rounding of sums. The ledger has the clock of that step, so that every later attempt does the same.
"""

import contextlib
import gc
import math

import torch

from hornbook.data.corpus import Corpus
from hornbook.errors import DoesNotFitError, UsageError, quoted
from hornbook.kernels.device_errors import device_error
from hornbook.model.config.flops import state_bytes
from hornbook.model.config.parameter_count import embedding_rows
from hornbook.model.heads.head import device_chunk_bytes
from hornbook.parallel.config import BETWEEN
from hornbook.parallel.device import choose_device
from hornbook.parallel.offload.offload import moves_activations
from hornbook.plan.counts.held_counts import held_values
from hornbook.plan.counts.share import activation_bytes, left_on_device, rows_of
from hornbook.plan.holding.own import head_bytes
from hornbook.progress import size_text
from hornbook.run.checkpoints.state import State
from hornbook.run.job.job import Job
from hornbook.run.machine.process_memory import free_memory
from hornbook.settings.recipe import Recipe
from hornbook.settings.resolve import Resolved
from hornbook.text.tokenizer.tokenizer import Tokenizer

MARGIN = 0.8
"""Share of free memory that `auto` plans with: the allocator's gaps, the data and the interpreter take the rest."""


def settle_micro_batch(resolved: Resolved, *, launched: bool = False) -> Resolved:
    """The recipe with a number in place of `auto`; `launched`: a launcher started this rank beside others.

    Raises UsageError where the model does not say what it keeps, DoesNotFitError where one row is too many.
    """
    recipe = resolved.recipe
    if recipe.train.micro_batch != "auto":
        return resolved
    if launched:
        raise UsageError('train.micro_batch "auto" would differ between machines of a launcher: give a number')
    rows, free = largest_micro_batch(recipe, vocabulary_rows(recipe), free_memory(choose_device(recipe.train.device)))
    train = recipe.train.model_copy(update={"micro_batch": rows})
    origins = resolved.origins | {"train.micro_batch": f"auto: the largest that fits {size_text(free)}"}
    return Resolved(recipe.model_copy(update={"train": train}), origins)


def vocabulary_rows(recipe: Recipe) -> int:
    """Rows of the embedding."""
    if recipe.model.vocab is not None or recipe.data.path is None:
        return recipe.model.vocab or embedding_rows(recipe.model, 0)
    return embedding_rows(recipe.model, Tokenizer.load(Corpus.open(recipe.data.path).root / "tokenizer").vocab_size)


def largest_micro_batch(recipe: Recipe, vocab: int, free: int) -> tuple[int, int]:
    """(rows, bytes of memory planned with). DoesNotFitError where not even one row fits."""
    planned = int(MARGIN * free) // (recipe.parallel.world if choose_device(recipe.train.device).type == "cpu" else 1)
    sizes = recipe.train.ramp.batches(recipe.train.batch_tokens).sizes
    share = math.gcd(*(size // recipe.train.sequence for size in sizes)) // recipe.parallel.data_ranks
    fitting = [rows for rows in divisors(share) if training_bytes(recipe, vocab, rows) <= planned]
    if fitting:
        return fitting[-1], planned
    need = size_text(training_bytes(recipe, vocab, 1))
    raise DoesNotFitError(
        f"one row at a time needs {need}, and {size_text(planned)} are free: set --parallel.recompute block, a shorter "
        "--train.sequence, or take a smaller model"
    )


def divisors(number: int) -> list[int]:
    """Divisors of a number, rising; of 0 just 1."""
    return [each for each in range(1, number + 1) if number % each == 0] or [1]


def training_bytes(recipe: Recipe, vocab: int, rows: int) -> int:
    """Bytes that a process holds at most while it computes a microbatch of so many rows.

    State, what is kept for backward, the block that is computed again, and while a block goes backward the gradients of
    what it kept; or, in the head, logits and a product of the matrix's size.
    """
    is_cpu = choose_device(recipe.train.device).type == "cpu"
    kept = activation_bytes(recipe, vocab, rows, fused=not is_cpu)
    held = max(held_values(recipe.model, vocab, recipe.parallel, recipe.train.sequence))
    offload = recipe.parallel.offload
    state = left_on_device(state_bytes(held, recipe.parallel, recipe.optim, recipe.train.item_bytes), offload)
    on_the_way = 0 if is_cpu else 2 * BETWEEN  # down and up
    held = kept.total - (max(kept.blocks - on_the_way, 0) if moves_activations(offload) else 0)
    block = max(kept.recomputed, -(-kept.blocks // recipe.model.num_blocks))
    return sum(state.values()) + held + kept.recomputed + max(block, _head_bytes(recipe, vocab, rows))


def _head_bytes(recipe: Recipe, vocab: int, rows: int) -> int:
    """Bytes for logits and a product of the matrix's size."""
    device = choose_device(recipe.train.device)
    chunk = 0 if device.type == "cpu" else device_chunk_bytes(device)
    return head_bytes(recipe.model, vocab, rows_of(recipe, rows), chunk)


# ---- Out of memory


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocator refused: on a GPU, in torch on a CPU, or in numpy."""
    return isinstance(device_error(error), DoesNotFitError)


def does_not_fit(job: Job, problem: str, rows: int) -> DoesNotFitError:
    """The error of a run that found no memory with `rows` rows at once: requested, planned, and what helps.

    problem: the text of the error's `device_error`.
    """
    recipe, planned, remedy = job.recipe, "", ""
    with contextlib.suppress(UsageError):  # not every model says what it keeps
        planned = f" of {size_text(training_bytes(recipe, job.inputs.vocab, rows))} planned"
    if rows > 1:
        remedy = f" --train.micro_batch {divisors(rows)[-2]}"
    elif recipe.parallel.recompute.kind == "none":
        remedy = " --parallel.recompute block"
    wanted = f"{problem.split('. ', maxsplit=1)[0]}, with {f'{rows} rows at once' if rows > 1 else 'one row at a time'}"
    return DoesNotFitError(
        f"{wanted}{planned}. `hornbook resume {quoted(job.run.path)}{remedy}` goes on from the newest checkpoint; "
        "--parallel.recompute block, --parallel.offload or a smaller model need less"
    )


def take_fewer_rows(job: Job, state: State, problem: str) -> None:
    """Halve the micro-batch from the step at hand on, or as near as its divisors allow; the ledger has it first.

    Raises DoesNotFitError for a single row, and on several ranks: the others are in collectives of the same step.
    """
    before = state.micro_batch
    if state.engine.world.size > 1 or before == 1:
        raise does_not_fit(job, problem, before)
    rows = divisors(before)[-2]
    job.ledger.note("micro_batch", state, rows=rows, before=before, text=problem.split(". ", maxsplit=1)[0])
    state.fewer_rows.append((state.tokens, rows))
    state.engine.zero_gradients()
    free_cached_memory()


def free_cached_memory() -> None:
    """Give back what a failed pass held, and what torch keeps of it for the next."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
