"""What the planner says: layouts of a run on a cluster, and what follows for a run from them."""

from functools import cached_property
from typing import Any

from pydantic import Field

from hornbook.parallel.config import ParallelConfig
from hornbook.plan.at_scale.failure_costs import Upkeep
from hornbook.plan.devices.hardware import Cluster
from hornbook.plan.planned_memory import RankMemory
from hornbook.plan.step_time import StepTime
from hornbook.settings.fields import Config

SAME = 1.03
"""Times that differ by less are not told apart, for an estimate is wrong by more; of such layouts the simplest is the
best."""
FITS = 0.94
"""Share of a device's memory that a plan may fill: the allocator's gaps take the rest."""
POWER_SHARE = 0.8
"""Share of its board power that a training device draws, and the rest of a machine per device."""


class Layout(Config):
    """One layout of a run on a cluster."""

    name: str
    """`zero-3 x 8, tensor 2`."""
    parallel: ParallelConfig
    micro_batch: int
    precision: str
    recompute: str
    memory: list[RankMemory]
    """Of each rank of the pipeline."""
    fits: bool
    step: StepTime
    tokens_per_second: float
    mfu: float
    """Share of the peak: operations of the model over pairs that see each other."""
    mfu_palm: float
    """The same over all pairs, as PaLM counts."""
    hfu: float
    """Share of the peak with what is computed again."""
    pareto: bool = False
    """Whether no other layout of the plan is better in both time and memory."""

    @cached_property
    def worst(self) -> RankMemory:
        """The rank that holds the most."""
        return max(self.memory, key=lambda each: each.peak.total)

    def slowed(self, factor: float) -> "Layout":
        """The layout where every part of a step takes `factor` times as long."""
        step = StepTime.model_validate({name: factor * seconds for name, seconds in self.step})
        rates = {name: getattr(self, name) / factor for name in ("tokens_per_second", "mfu", "mfu_palm", "hfu")}
        return self.model_copy(update=rates | {"step": step})


class Plan(Config):
    """The layouts of a run on a cluster, the best first."""

    name: str
    parameters: int
    vocab: int
    batch_tokens: int
    tokens: int | None
    """Of the run; None where they depend on data."""
    epochs: float | None = None
    """Passes over the data, where they set the length."""
    cluster: Cluster
    layouts: list[Layout]
    missed: Layout | None = None
    """A layout that would be faster than all of them, and does not fit: of such, the smallest."""
    estimates: int = 0
    """Layouts whose step was timed; bounds have ruled out the others."""
    reasons: list[str] = Field(default_factory=list)
    """Why the best one is before the next, and why the missed one does not fit."""
    setting: str = ""
    """A setting, as it is typed, that makes it fit here where it does not; none: ""."""
    remedy: str = ""
    """The smallest cluster on which it fits, where it does not."""
    price: float | None = None
    """Dollars for an hour of a device."""
    price_source: str = ""
    anchor: str = ""
    """What runs on this machine measured, where times follow it."""
    time_factor: float = 1.0
    """Times are so many times those of data sheets and benchmarks, by that."""
    upkeep: Upkeep | None = None
    """What failures, saves and data ask for beside the steps of the best layout."""
    warnings: list[str] = Field(default_factory=list)

    @property
    def best(self) -> Layout:
        """The first."""
        return self.layouts[0]

    @property
    def is_search(self) -> bool:
        """Whether layouts were compared, not one that was given."""
        return self.estimates > 0

    @property
    def fits_on(self) -> str:
        """A sentence that names what makes it fit."""
        ways = [f"with {self.setting}"] * bool(self.setting) + [f"on {self.remedy}"] * bool(self.remedy)
        return f"it fits {' or '.join(ways)}" if ways else "no number of these devices holds it"

    def seconds(self, layout: Layout) -> float | None:
        """Of the run, without evaluation and saves."""
        return None if self.tokens is None else self.tokens / layout.tokens_per_second

    def cost(self, layout: Layout) -> float | None:
        """Dollars."""
        seconds = self.seconds(layout)
        if seconds is None or self.price is None:
            return None
        return seconds / 3600 * self.price * self.cluster.count

    def kilowatt_hours(self, layout: Layout) -> float | None:
        """Energy of the devices."""
        seconds = self.seconds(layout)
        watts = self.cluster.device.watts * self.cluster.count * POWER_SHARE
        return None if seconds is None or not watts else seconds / 3.6e6 * watts

    def record(self) -> dict[str, Any]:
        """As JSON, each layout with what depends on the length of the run."""
        return self.model_dump(mode="json") | {"layouts": [self._record(each) for each in self.layouts]}

    def _record(self, layout: Layout) -> dict[str, Any]:
        return layout.model_dump(mode="json") | {
            "peak_bytes": layout.worst.peak.total,
            "peak_phase": layout.worst.peak_phase,
            "step_seconds": layout.step.total,
            "seconds": self.seconds(layout),
            "dollars": self.cost(layout),
            "kilowatt_hours": self.kilowatt_hours(layout),
        }


def capacity(cluster: Cluster) -> float:
    """Bytes that a rank may take; ranks on a CPU share its memory."""
    return FITS * cluster.device.memory_bytes / (cluster.count if cluster.device.is_cpu else 1)
