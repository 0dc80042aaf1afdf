"""Surgery: `operate(model, steps)` changes a built model in place, before it is spread over devices.

The base's names and values stay; what is added has names of its own below the layers it hangs on. Values come as a
stream: the base's, and right after a layer's weight those of the modules on it (`hornbook.model.surgery.added_values`).
"""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from hornbook.errors import UsageError
from hornbook.kernels.torch_versions import allocate
from hornbook.model.build_model import build_model
from hornbook.model.config import surgery_config as config
from hornbook.model.config.model_config import ModelConfig
from hornbook.model.config.surgery_config import SurgeryStep
from hornbook.model.heads.label_heads import LabelHead
from hornbook.model.surgery.added import matching
from hornbook.model.surgery.added_values import added_parameters, with_added
from hornbook.model.transformer import Transformer


def operate(model: nn.Module, steps: Sequence[config.SurgeryStep]) -> None:
    """Do the steps in order. A model on meta stays there.

    Raises UsageError naming the setting, what was expected and what was found, before anything is trained.
    """
    if problems := config.surgery_problems(steps):
        raise UsageError("\n".join(f"surgery: {problem}" for problem in problems))
    for step in steps:
        if isinstance(step, config.AdapterStep):
            for parameter in model.parameters():
                parameter.requires_grad_(False)
            _train_head(model)
        step.make(model, step)
    if steps and not any(parameter.requires_grad for parameter in model.parameters()):
        raise UsageError("surgery: nothing is left to train")


def _train_head(model: nn.Module) -> None:
    """A head for labels is trained whole beside an adapter: what it has to say was not known to the model."""
    head = getattr(model, "head", None)
    if isinstance(head, LabelHead):
        head.apart = True
        head.requires_grad_(True)


def freeze(model: nn.Module, step: config.Freeze) -> None:
    """Take the parameters the step names out of training."""
    parameters = dict(model.named_parameters())
    for name in matching(parameters, step.names, "surgery freeze names", "parameter"):
        parameters[name].requires_grad_(False)


def build_operated(config: ModelConfig, vocab: int, steps: Sequence[SurgeryStep]) -> Transformer:
    """The model of a configuration after surgery, on meta. Raises UsageError as `operate`."""
    model = build_model(config, vocab, "meta")
    operate(model, steps)
    return model


def added_shapes(config: ModelConfig, vocab: int, steps: Sequence[SurgeryStep]) -> dict[str, tuple[int, ...]]:
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
    allocate(model, device)
    with torch.no_grad():
        for name, tensor in with_added(model, base, seed, stored):
            model.get_parameter(name).copy_(tensor)
    return model.eval()
