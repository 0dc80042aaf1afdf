"""Statistics of every layer (`log.statistics_every`): lines of RUN/statistics.jsonl. They change no bit of training.

Norms of gradients and weights and sizes of updates are those of the step itself; outputs of blocks, dead units and
attention logits are those of a forward pass of its own over the first of the next rows, with the weights after it.
"""

from dataclasses import asdict, dataclass
from typing import Any

from hornbook.data.loader.loader import Loader
from hornbook.parallel.engine import Engine
from hornbook.run.layers.activations import ActivationWatch, BlockOutputs
from hornbook.run.layers.weights import LayerNorms, WeightStatistics
from hornbook.run.ledger.step_report import is_due

TOKENS = 2048
"""Tokens of the forward pass at most, but a row at least."""


@dataclass(frozen=True)
class Measured:
    """The statistics of one step."""

    layers: tuple[str, ...]
    norms: LayerNorms
    blocks: tuple[str, ...]
    outputs: BlockOutputs
    loss_scale: float | None
    """Of fp16, after the step."""
    left_out: str = ""
    """What could not be measured, and why."""

    def record(self) -> dict[str, Any]:
        """Columns by layer and by block, as the file has them: four digits are enough, and small."""
        record: dict[str, Any] = {"layers": self.layers, **_rounded(asdict(self.norms))}
        record |= {"blocks": self.blocks, **_rounded(asdict(self.outputs))}
        more = {"loss_scale": self.loss_scale, "left_out": self.left_out}
        return record | {name: value for name, value in more.items() if value}


class LayerStatistics:
    """Measures every n-th step, on every rank; `State.layers` holds it."""

    def __init__(self, engine: Engine, every: int) -> None:
        self._engine, self._every = engine, every
        self._weights = WeightStatistics(engine)
        self._watch = ActivationWatch(engine, [name for name in self._weights.layers if "blocks." in name])

    def is_due(self, step: int) -> bool:
        """Whether step `step` is measured."""
        return is_due(step, self._every)

    def begin(self, step: int) -> None:
        """Between backward and clipping of step `step`."""
        if self.is_due(step):
            self._weights.begin()

    def measure(self, loader: Loader, most_rows: int) -> Measured:
        """What was found, once the step is done. `most_rows`: of a microbatch."""
        norms, engine = self._weights.end(), self._engine
        rows = max(min(TOKENS // loader.index.sequence, most_rows), 1)
        outputs = self._watch.measure(rows, loader.peek)
        left_out = "" if self._watch.has_logits else "max_logit: with parallel.context no rank has all keys"
        scale = None if engine.scaler is None else engine.scaler.scale
        return Measured(self._weights.layers, norms, self._watch.blocks, outputs, scale, left_out)


def _rounded(columns: dict[str, Any]) -> dict[str, Any]:
    return {name: _short(values) for name, values in columns.items()}


def _short(value: Any) -> Any:
    if isinstance(value, list):
        return [_short(each) for each in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value
