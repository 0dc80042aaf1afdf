"""A model built and operated on, and which of its parameters are the base's."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from hornbook.model.build import build_model
from hornbook.model.config.model import ModelConfig
from hornbook.model.config.surgery import SurgeryStep
from hornbook.model.surgery.operate import operate
from hornbook.model.surgery.values import added_parameters, with_added
from hornbook.model.transformer import Transformer

Shapes = dict[str, tuple[int, ...]]


def build_operated(config: ModelConfig, vocab: int, steps: Sequence[SurgeryStep]) -> Transformer:
    """The model of a configuration after surgery, on meta. Raises UsageError as `operate`."""
    model = build_model(config, vocab, "meta")
    operate(model, steps)
    return model


def added_shapes(config: ModelConfig, vocab: int, steps: Sequence[SurgeryStep]) -> Shapes:
    """Name and shape of what surgery adds, without allocating any."""
    model = build_operated(config, vocab, steps)
    return {name: tuple(each.shape) for name, each in added_parameters(model).items()}


def trained_parameters(config: ModelConfig, vocab: int, steps: Sequence[SurgeryStep]) -> int:
    """How many numbers training changes."""
    return sum(each.numel() for each in build_operated(config, vocab, steps).parameters() if each.requires_grad)


def fill(
    model: Transformer,
    base: Iterable[tuple[str, Tensor]],
    stored: dict[str, Tensor] | None,
    *,
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> Transformer:
    """Give a model on meta its values: the base's, and what was stored of surgery (None: its first values)."""
    model.to_empty(device=device)
    with torch.no_grad():
        for name, tensor in with_added(model, base, seed, stored):
            model.get_parameter(name).copy_(tensor)
    return model.eval()
