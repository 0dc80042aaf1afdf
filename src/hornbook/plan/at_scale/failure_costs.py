"""What failures, checkpoints and data cost a run: pure functions, with the sources of what they assume.

Failures are a Poisson process whose rate grows with the number of devices. The best time between checkpoints is
Young's (1974) to first order, Daly's (2006) beyond; goodput is Daly's complete model. Storage is Llama 3's
(arXiv 2407.21783, section 3.3.1): 2 TB/s sustained for 2,048 machines.
"""

import math
import tomllib
from functools import cache
from pathlib import Path

from pydantic import Field

from hornbook.model.config.parameter_count import count_parameters
from hornbook.model.config.surgery_config import adapter_of
from hornbook.plan.counts.adapted import adapted
from hornbook.plan.devices.hardware import Cluster
from hornbook.settings.fields import Config
from hornbook.settings.recipe import Recipe

RESTART_SECONDS = 300.0
"""From a failure to the next step: to notice it, to replace a machine, to read a checkpoint."""
STORAGE_RATE = 1e9
"""Bytes per second that a machine writes to shared storage."""
HOST_RATE = 2e10
"""Bytes per second that a device copies to its host: PCIe 4, of whose 32 GB/s pinned memory reaches so much."""
LEAST_STALL = 1.0
"""Seconds that a save holds the loop however little each device copies, assumed: ranks meet, and exchange names."""
NARROW_VOCAB = 2**16
"""Token ids below it take two bytes on disk, others four."""


class Training(Config):
    """How often a published training was interrupted."""

    name: str
    devices: int = Field(gt=0)
    days: float = Field(gt=0)
    interruptions: int = Field(gt=0)
    source: str

    @property
    def device_hours(self) -> float:
        """Mean hours of one device between interruptions."""
        return self.devices * 24 * self.days / self.interruptions


@cache
def trainings() -> dict[str, Training]:
    """The published trainings by name, the default one first."""
    table = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    found = {each["name"]: Training.model_validate(each) for each in table["training"]}
    return {table["default"]: found.pop(table["default"]), **found}


class Upkeep(Config):
    """What a run needs beside its steps."""

    mtbf_seconds: float
    """Mean time between failures of the whole cluster."""
    mtbf_source: str
    checkpoint_bytes: int
    """Weights and moments."""
    stall_seconds: float
    """How long a save holds the loop: each device copies its share."""
    write_seconds: float
    """How long it is written, beside training."""
    interval_seconds: float
    """Best time between saves."""
    restart_seconds: float
    goodput: float
    """Share of the time that goes into steps that count."""
    loader_rate: float
    """Bytes of token ids per second, for all devices."""

    def days(self, seconds: float) -> float | None:
        """Days of the calendar for so many seconds of steps; None where none of the time counts."""
        return seconds / self.goodput / 86400 if self.goodput else None

    def failures(self, seconds: float) -> float | None:
        """How many to expect meanwhile."""
        days = self.days(seconds)
        return None if days is None else 86400 * days / self.mtbf_seconds


def young(stall: float, mtbf: float) -> float:
    """Best seconds between saves to first order: sqrt(2 stall mtbf) (Young 1974)."""
    return math.sqrt(2 * stall * mtbf)


def daly(stall: float, mtbf: float) -> float:
    """The same to higher order; `mtbf` where a save takes twice as long as that (Daly 2006, equation 37)."""
    if stall >= 2 * mtbf:
        return mtbf
    part = stall / (2 * mtbf)
    return young(stall, mtbf) * (1 + math.sqrt(part) / 3 + part / 9) - stall


def goodput(interval: float, stall: float, restart: float, mtbf: float) -> float:
    """Share of the time that goes into steps that count (Daly 2006, equation 20): saves, failures, work done again.

    interval: seconds of steps between saves; failures strike saves and restarts too.
    """
    lost = (interval + stall) / mtbf
    if lost > 500 or restart / mtbf > 500:
        return 0.0
    return interval / (mtbf * math.exp(restart / mtbf) * math.expm1(lost))


def estimate_upkeep(
    recipe: Recipe,
    vocab: int,
    cluster: Cluster,
    tokens_per_second: float,
    training: Training | None = None,
    restart_seconds: float = RESTART_SECONDS,
) -> Upkeep:
    """Of a recipe on a cluster. vocab: rows of the embedding; training: whose failures are assumed."""
    known = training or next(iter(trainings().values()))
    mtbf = known.device_hours * 3600 / cluster.count
    size = checkpoint_bytes(recipe, vocab)
    machines = -(-cluster.count // max(cluster.node, 1))
    stall = LEAST_STALL + size / writers(recipe, cluster) / HOST_RATE
    write = size / machines / STORAGE_RATE
    step = recipe.train.batch_tokens / tokens_per_second
    interval = max(daly(stall, mtbf), write, step)  # one save is written before the next begins
    read = restart_seconds + write
    return Upkeep(
        mtbf_seconds=mtbf,
        mtbf_source=f"{known.name}: {known.device_hours:,.0f} hours of a device ({known.source})",
        checkpoint_bytes=size,
        stall_seconds=stall,
        write_seconds=write,
        interval_seconds=interval,
        restart_seconds=read,
        goodput=goodput(interval, stall, read, mtbf),
        loader_rate=tokens_per_second * (2 if vocab <= NARROW_VOCAB else 4),
    )


def writers(recipe: Recipe, cluster: Cluster) -> int:
    """Devices that copy a share of the state each: all that hold different parts of it. Copies share theirs out."""
    return max(min(cluster.count, recipe.parallel.world), 1)


def checkpoint_bytes(recipe: Recipe, vocab: int) -> int:
    """Weights, moments, and an average of the weights: of an adapter alone where there is one, its base stays."""
    has_adapter = adapter_of(recipe.surgery) is not None
    values = (
        adapted(recipe.model, vocab, recipe.surgery).trained if has_adapter else count_parameters(recipe.model, vocab)
    )
    average = 4 * values if recipe.train.average.kind != "none" else 0
    return recipe.train.item_bytes * values + recipe.optim.model_state_bytes(values) + average
