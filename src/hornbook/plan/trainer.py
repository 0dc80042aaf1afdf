"""How a trainer makes a step, as far as its time depends on it; what it holds: `planned_memory.Holding`."""

from dataclasses import dataclass
from typing import Literal

from hornbook.plan.devices.device_rates import GAP_SECONDS


@dataclass(frozen=True)
class Trainer:
    """What crosses ranks, what is computed meanwhile, and by which kernels. The defaults are hornbook's."""

    gradient_bytes: float = 4.0
    """Of a value's gradient."""
    weight_bytes: float = 4.0
    """Of a value that is gathered."""
    beside_data: bool = True
    """Messages of data ranks run beside computing."""
    sums_beside: bool = True
    """Of these, sums of gradients over all data ranks, and their scatters (`optimizer`, `gradients`): each as soon as
    backward has computed it."""
    innermost: Literal["expert", "tensor"] = "expert"
    """The axis whose ranks have neighbouring numbers; the other one follows (`hornbook.parallel.world.AXES`)."""
    again: float = 0.0
    """Share of a block's forward pass that `selective` recomputation repeats, or attention if that is more. If any, it
    repeats gathers of a stream that tensor ranks divide, but no sums."""
    beside_tensor: float = 0.0
    """Share of tensor ranks' messages that computing hides, forward."""
    beside_tensor_backward: float = 0.0
    """The same backward: they need not wait for the gradient of the weights."""
    asynchronous: bool = False
    """Each message of tensor ranks is cut into parts, which run beside those of the product that it feeds or sums, and
    hides behind no other: torch's asynchronous tensor parallelism. `beside_tensor` and the like do not count."""
    exposed: float = 0.1
    """Share of messages beside computing that shows all the same: both want memory and cores."""
    gathers: Literal["each microbatch", "each step"] = "each microbatch"
    """When weights that `everything` shards are gathered and their gradients summed."""
    one_card: bool = False
    """Each device has all that it gathers through its own network card: no ring within a machine shares it."""
    once_per_domain: bool = False
    """A token goes to each domain once, however many of its experts are there."""
    scatters: bool = False
    """Each tensor rank sends its part of the stream to the next stage, which gathers it (Narayanan et al. 2021)."""
    waits: bool = False
    """A stage does nothing else while its message to the next is on its way."""
    sum_bytes: float | None = 4.0
    """Of a value's gradient, in which microbatches are summed; None where weights are frozen beside adapters."""
    sums_apart: bool = False
    """Gradients are added to the sums in kernels of their own, not by the products that compute them."""
    targets: float = 1.0
    """Share of the model's positions that the head computes."""
    sides: tuple[float, float] = (1.0, 1.0)
    """Positions of the model, and of an encoder beside it, over those of a row."""
    stored_scores: bool = False
    """Attention is several kernels, with all its scores in memory."""
    expert_calls: int = 0
    """Kernels that it starts for each expert, forward: none where one kernel computes all of them."""
    attention: float | None = None
    """Rate of its attention's kernel over that of the device's best; None is torch's."""
    gap: float = GAP_SECONDS
    """Seconds between two kernels."""
    fused: bool = True
    """What lies between products is compiled or written as few kernels; on a CPU it makes no difference."""


HORNBOOK = Trainer()
"""hornbook with the settings by default; `hornbook.plan.planner.trainer_of` has those of a recipe."""
