"""What surgery adds to a model: modules of one base class, which say their role and their first values."""

from collections.abc import Iterator
from typing import ClassVar

from torch import Tensor, nn


class Added(nn.Module):
    """A part that surgery hung on a model."""

    role: ClassVar[str] = "matrix"
    """Of its own parameters (`hornbook.model.build.parameter_roles`)."""

    def first_values(self, name: str, seed: int, weight: Tensor | None) -> Iterator[tuple[str, Tensor]]:
        """(parameter, value float32 on the CPU) of each of its parameters, inner ones too, before training.

        name: of this module, which with the seed keys what is random. weight: of the layer it hangs on, as products
        see it, or None where it hangs on none.
        """
        raise NotImplementedError
