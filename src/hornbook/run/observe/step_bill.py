"""The bill of a run's steps: at every log interval, in metrics.jsonl, where the time went, MFU, what crossed ranks, and
the slowest rank.

Shares are means over the ranks of their wall time in steps, and add up to 1; `between` is what saves, evaluations and
records take between steps, beside that time. `communication` is what rank 0 sends in a step, by axes and kind. One
gather of a few numbers an interval is all that it costs.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from hornbook.model.config.flops import step_operations
from hornbook.parallel.traffic.step_clock import PHASES
from hornbook.parallel.traffic.traffic import TrafficReport
from hornbook.parallel.world import AXES, World
from hornbook.run.job.run_inputs import Inputs
from hornbook.run.ledger.step_report import Step
from hornbook.run.machine.peak import Peak, known_peak, num_devices
from hornbook.run.observe.console import Console
from hornbook.run.observe.slowdown import Slowdown, SlowdownDetector, Window
from hornbook.run.observe.straggler import NAMES, Straggler, StragglerDetector, slowest

MIN_SECONDS = 1.0
"""Shortest window that is judged: intervals are put together until they last so long."""
SLOW_RANK = 1.2
"""The bill names a rank that works this multiple of the median of the others."""


class StepBill:
    """Observer on every rank; rank 0's knows the result."""

    def __init__(
        self,
        inputs: Inputs,
        world: World,
        notify: Callable[[Slowdown | Straggler, Step], None],
        consoles: Sequence[Console] = (),
    ) -> None:
        recipe = inputs.recipe
        self._world, self._notify, self._consoles = world, notify, consoles
        shape = (recipe.model, inputs.vocab, recipe.train.sequence)
        self._costs = [step_operations(*shape, one, recipe.parallel.recompute) for one in ((1, 0), (0, 1))]
        """Operations of a position of the model, and of its encoder."""
        self._every, factor = recipe.log.every, recipe.log.slowdown
        self._detector = None if factor is None else SlowdownDetector(factor)
        self._stragglers = None if factor is None else StragglerDetector(factor, MIN_SECONDS)
        self._peak: Peak | None = known_peak(world.device, recipe.train.precision) if world.is_rank0 else None
        self._devices = num_devices(world.device, world.size)
        self._steps: list[Step] = []
        self._windows: list[Window] = []
        self._record: dict[str, Any] = {}
        self._since = time.monotonic()

    def __call__(self, step: Step) -> None:
        self._steps.append(step)
        self._record = self._close() if step.step % self._every == 0 else {}

    def take_record(self) -> dict[str, Any]:
        """`{"bill": ...}` for the line of the newest step where its interval ended, else nothing."""
        taken, self._record = self._record, {}
        return taken

    def _close(self) -> dict[str, Any]:
        """End the interval. All ranks come here at the same step."""
        steps, self._steps = self._steps, []
        now = time.monotonic()
        passed, self._since = now - self._since, now
        own = [sum(step.phases.get(name, 0.0) for step in steps) for name in PHASES]
        seconds = sum(step.seconds for step in steps)
        own.append(max(seconds - sum(own), 0.0))
        stage = self._world.axis_rank(["pipeline"])
        ranks = self._world.all_gather(torch.tensor([[*own, stage]], dtype=torch.float64), AXES)
        rows: list[list[float]] = torch.cat(ranks).tolist()
        if not self._world.is_rank0:
            return {}
        stages = [int(row.pop()) for row in rows]
        slow = slowest(rows, stages)
        phases = {name: statistics.fmean(column) for name, column in zip(NAMES, zip(*rows, strict=True), strict=True)}
        window = Window(
            steps[0].step,
            len(steps),
            sum(step.step_tokens for step in steps),
            sum(phases.values()),
            phases,
            "" if slow is None or slow.factor < SLOW_RANK else str(slow),
        )
        self._judge(window, steps[-1])
        if self._stragglers is not None and len(rows) > 1:
            straggler = self._stragglers.judge(window.first, window.steps, rows, stages)
            if straggler is not None:
                self._notify(straggler, steps[-1])
        return {"bill": self._bill(steps, window, max(passed - seconds, 0.0) / max(passed, 1e-9))}

    def _bill(self, steps: list[Step], window: Window, between: float) -> dict[str, Any]:
        total = max(window.seconds, 1e-9)
        counts = [
            self._world.data_size * sum(column) for column in zip(*(step.positions for step in steps), strict=True)
        ]
        causal = sum(count * cost.causal for count, cost in zip(counts, self._costs, strict=True))
        palm = sum(count * cost.palm for count, cost in zip(counts, self._costs, strict=True))
        bill: dict[str, Any] = {
            "steps": window.steps,
            "shares": {name: round(seconds / total, 4) for name, seconds in window.phases.items()},
            "between": round(between, 4),
            "flops_per_second": round(causal / total),
        }
        if self._peak is not None:
            could = self._peak.rate * self._devices * total
            bill["mfu"] = {"causal": round(causal / could, 4), "palm": round(palm / could, 4)}
            bill["peak"] = self._peak.source
            for console in self._consoles:
                console.used(bill["mfu"]["causal"])
        if self._world.size > 1:
            bill["communication"] = sum((step.traffic for step in steps), TrafficReport()).record(len(steps))
        if window.slow_rank:
            bill["slow_rank"] = window.slow_rank
        return bill

    def _judge(self, window: Window, step: Step) -> None:
        """Put windows together until they last long enough, and judge them."""
        if self._detector is None:
            return
        if self._windows and window.tokens / window.steps != self._windows[-1].tokens / self._windows[-1].steps:
            self._windows.clear()
        self._windows.append(window)
        if sum(each.seconds for each in self._windows) < MIN_SECONDS:
            return
        whole, self._windows = _joined(self._windows), []
        found = self._detector.judge(whole)
        if found is not None:
            self._notify(found, step)


def _joined(intervals: list[Window]) -> Window:
    phases = {name: sum(each.phases[name] for each in intervals) for name in NAMES}
    sums = (sum(each.steps for each in intervals), sum(each.tokens for each in intervals))
    return Window(intervals[0].first, *sums, sum(phases.values()), phases, intervals[-1].slow_rank)
