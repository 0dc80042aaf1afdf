"""Which part of each parameter a rank holds.

Whatever cuts a model over ranks (sharding, later tensor parallelism) gives each rank one rectangle of each parameter.
The optimizer updates rectangles and a checkpoint stores them in their place in the whole, so neither
knows how the model was cut.
"""

from dataclasses import dataclass

from torch import nn


@dataclass(frozen=True)
class Piece:
    """The rectangle of one parameter that this rank holds and updates."""

    tensor: nn.Parameter
    """Plain and contiguous, in the model's own storage; may be empty."""
    shape: tuple[int, ...]
    """Of the whole parameter."""
    start: tuple[int, ...]
    """Where the rectangle begins in the whole, per dim; it has `tensor.shape`."""
    keeper: bool = True
    """Whether this rank is the one, of those that hold the same rectangle, that saves it."""

    @property
    def slices(self) -> tuple[slice, ...]:
        """The rectangle as an index into the whole."""
        return tuple(slice(first, first + size) for first, size in zip(self.start, self.tensor.shape, strict=True))


def whole_piece(parameter: nn.Parameter, keeper: bool = True) -> Piece:
    """A parameter that this rank holds whole."""
    return Piece(parameter, tuple(parameter.shape), (0,) * parameter.dim(), keeper)
