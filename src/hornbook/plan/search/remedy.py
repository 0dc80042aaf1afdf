"""Remedies for a run that does not fit: a setting on the same devices, or more of them."""

from collections.abc import Callable
from contextlib import suppress

from hornbook.errors import UsageError
from hornbook.plan.devices.hardware import Cluster
from hornbook.plan.devices.names import typed
from hornbook.plan.search.best import Search
from hornbook.plan.search.plan_result import capacity
from hornbook.plan.search.space import Layouts
from hornbook.plan.trainer import Trainer
from hornbook.settings.recipe import Recipe
from hornbook.settings.resolve import Resolved, override
from hornbook.settings.sources import command_line_source

SETTINGS = (
    ("--parallel.offload.kind=cpu", "--parallel.offload.optimizer"),  # computes the same
    ("--train.precision=bf16-pure",),
)
"""Settings that take less memory, the one to try first first."""
MOST = 2**17
"""Devices."""
TrainerOf = Callable[[Recipe], Trainer]


def fitting_setting(recipe: Recipe, vocab: int, layouts: Layouts, trainer: TrainerOf) -> str:
    """The first setting with which some layout fits on these devices, as it is typed; "" where none does."""
    cluster = layouts.cluster
    for words in () if cluster.device.is_cpu else SETTINGS:
        with suppress(UsageError):  # other settings of the recipe rule it out
            changed = layouts.other(override(Resolved(recipe, {}), [command_line_source(words)]).recipe, cluster)
            if Search(vocab, cluster, changed, trainer).fits(capacity(cluster)):
                return " ".join(words)
    return ""


def smallest_cluster(recipe: Recipe, vocab: int, layouts: Layouts, trainer: TrainerOf) -> str:
    """The smallest cluster of such devices, by powers of two, on which some layout fits; "" where none does."""
    device, count = layouts.cluster.device, 1 << layouts.cluster.count.bit_length()
    while not device.is_cpu and count <= MOST:
        node = min(count, device.node)
        larger = Cluster(device=device, count=count, node=node)
        rows = max(recipe.train.batch_tokens // recipe.train.sequence, count)
        train = recipe.train.model_copy(update={"batch_tokens": rows * recipe.train.sequence})
        grown = layouts.other(recipe.model_copy(update={"train": train}), larger)
        if Search(vocab, larger, grown, trainer).fits(capacity(larger)):
            machines = f"{count // node}x{node}" if count > node else str(count)
            return f"{machines}x{typed(device)}"
        count *= 2
    return ""
