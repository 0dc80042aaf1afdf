"""Adagrad (Duchi et al. 2011, JMLR 12) for devices on which torch has no fused kernel."""

from typing import Any

import torch

from hornbook.kernels.torch_versions import EagerOptimizer
from hornbook.optim.foreach import foreach, foreach_lists


class AdagradUpdate(EagerOptimizer):
    """torch's own loop asks the device for the number of steps of each parameter, and waits each time; this does not.

    The state is torch's, so that a run may go on with its fused kernel on a CPU.
    """

    def __init__(self, groups: list[dict[str, Any]]) -> None:
        super().__init__(groups, {})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Update the parameters that have a gradient."""
        assert closure is None
        for group in self.param_groups:
            steps = [self.state[each]["step"] for each in group["params"]]
            foreach._foreach_add_(steps, 1.0)
            for parameters, raw, sums in foreach_lists(group, self.state, "sum"):
                decay = group["weight_decay"]
                gradients = foreach._foreach_add(raw, parameters, alpha=decay) if decay else raw
                foreach._foreach_addcmul_(sums, gradients, gradients, 1.0)
                roots = foreach._foreach_sqrt(sums)
                foreach._foreach_add_(roots, group["eps"])
                foreach._foreach_addcdiv_(parameters, gradients, roots, -group["lr"])
