"""Trained values, memory and work of a model after surgery: arithmetic on configurations.

Tensor ranks divide an adapter as they divide its matrix, so all numbers follow from a rank's share of the matrices.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any

from hornbook.errors import UsageError
from hornbook.model.config.head_config import LMHead, MaskedHead
from hornbook.model.config.model_config import ModelConfig
from hornbook.model.config.parameter_count import parameters_of
from hornbook.model.config.part import Weight
from hornbook.model.config.surgery_config import (
    AdapterStep,
    BottleneckConfig,
    Dora,
    Freeze,
    Ia3Config,
    LlamaAdapter,
    LlamaAdapterV2,
    Lora,
    Nf4,
    PrefixConfig,
    PromptConfig,
    Sparse,
)
from hornbook.settings.fields import KEPT, ByIdentity

SCALES_PER_BLOCK = 256
"""Scales of 4-bit blocks that have a range in common (`hornbook.model.surgery.quantization.nf4`)."""


@dataclass(frozen=True)
class Adapted:
    """A model after surgery, or what a tensor rank has of it."""

    trained: int = 0
    """Values that training changes."""
    added: int = 0
    """Of them those that surgery added."""
    base: int = 0
    """Values of the model before surgery."""
    coded: int = 0
    """Values of the base that are held as codes."""
    beside: int = 0
    """The values of `coded` in layers that are normally fused (Q/K/V, gate/up)."""
    code_bytes: int = 0
    """Bytes of the codes."""
    inner: int = 0
    """Values of a token that are kept of what low-rank updates, or factors, compute, of all layers."""
    updated: int = 0
    """Layers with a low-rank update."""
    around: int = 0
    """Inputs and outputs of a token in these layers."""
    outputs: int = 0
    """Of them the outputs."""
    gated: int = 0
    """Values that gated MLPs hand to a layer with an update: a CPU's kernel would not keep them."""
    first: int = 0
    """Number of the first block that goes backward: what lies before it is frozen and keeps nothing."""
    frozen: float = 0.0
    """Share of the matrices of blocks that is frozen: their gradients are not computed."""
    is_head_frozen: bool = False
    """Whether the matrix of outputs is."""
    is_norm_frozen: bool = False
    """Whether norms are, all of them."""

    def of_rank(self, held: int, stages: int) -> int:
        """Trained values of a rank of a pipeline that holds `held` values of the base."""
        return self.added // stages + (self.trained - self.added) * held // self.base


def adapted(model: ModelConfig, vocab: int, steps: Sequence[Any], tensor: int = 1) -> Adapted:
    """The model after these steps, or what one of `tensor` ranks has of it.

    Raises UsageError for steps and parts whose layers are not known here.
    """
    return _adapted(ByIdentity(model), vocab, tuple(map(ByIdentity, steps)), tensor)


@lru_cache(KEPT)
def _adapted(by: ByIdentity[ModelConfig], vocab: int, steps: tuple[ByIdentity[Any], ...], tensor: int) -> Adapted:
    surgery = _Surgery(by.config, [each.of_rank(tensor) for each in parameters_of(by.config, vocab)])
    for step in steps:
        surgery.do(step.config)
    return surgery.result()


@dataclass
class _Surgery:
    """Steps done one after the other; names of layers and parameters are those of the built model."""

    model: ModelConfig
    parameters: list[Weight]
    frozen: set[str] = field(default_factory=set[str])
    """Names of parameters of the base."""
    hung: set[str] = field(default_factory=set[str])
    """Names of layers that train something."""
    found: dict[str, int] = field(default_factory=dict[str, int])

    def do(self, step: Any) -> None:
        """One step. Raises UsageError for one that is not known here."""
        if isinstance(step, AdapterStep):
            apart = not isinstance(self.model.head, LMHead | MaskedHead)  # a head of labels is trained beside it
            self.frozen = {each.name for each in self.parameters if not (apart and each.name.startswith("head."))}
        match step:
            case Lora():
                self._add_low_rank(step)
            case BottleneckConfig():
                chosen = self._chosen(step.targets)
                inner, outputs = step.width * len(chosen), sum(each.shape[0] for each in chosen)
                self._add(trained=2 * step.width * outputs + inner + outputs, updated=len(chosen), outputs=outputs)
                self._add(inner=2 * inner + outputs, around=2 * outputs)
            case Ia3Config():
                chosen = self._chosen(step.targets)
                read = {each.name for each in self._chosen(step.inputs, hang=False)}
                values = sum(each.shape[each.name in read] for each in chosen)
                self._add(trained=values, inner=values, gated=_gated(chosen))  # what is multiplied is kept
            case PromptConfig():
                self._add(trained=step.length * (self.model.embedding.width or self.model.width))
            case PrefixConfig():
                self._add(trained=_prefix_values(self.model, step))
            case LlamaAdapter():
                self._add_gated(step)
            case Freeze():
                self._freeze(step)
            case Nf4():
                chosen = self._chosen(step.targets, hang=False)
                sizes, joint = [each.size for each in chosen], (".query", ".key", ".value", "mlp.gate", "mlp.up")
                if all(layer.attention.kind == "full" and layer.mlp.kind == "glu" for layer in self._layers()):
                    self._add(beside=sum(each.size for each in chosen if each.layer.endswith(joint)))
                self._add(coded=sum(sizes), code_bytes=sum(_code_bytes(size, step.block) for size in sizes))
            case Sparse():
                pass
            case _:
                raise UsageError(
                    f"the planner does not know what {step.kind} (surgery) takes: leave it out of the plan, or measure "
                    "a step with `hornbook bench RECIPE`"
                )

    def _add(self, **values: int) -> None:
        for name, value in values.items():
            self.found[name] = self.found.get(name, 0) + value

    def _chosen(self, targets: Sequence[str], *, hang: bool = True) -> list[Weight]:
        """Matrices of the linear layers that the globs name."""
        layers = [each for each in self.parameters if each.layer]
        for glob in targets:
            if not any(fnmatchcase(each.layer, glob) for each in layers):
                raise UsageError(f"surgery: {glob!r} matches no linear layer that the planner knows")
        found = [each for each in layers if any(fnmatchcase(each.layer, glob) for glob in targets)]
        self.hung |= {each.name for each in found if hang}
        return found

    def _layers(self) -> list[ModelConfig]:
        return [self.model.layer(number) for number in range(self.model.layers)]

    def _add_low_rank(self, step: Lora) -> None:
        chosen = self._chosen(step.targets)
        outputs = sum(each.shape[0] for each in chosen)
        around = outputs + sum(each.shape[1] for each in chosen)
        lengths = outputs if isinstance(step, Dora) else 0
        self._add(trained=step.rank * around + lengths, updated=len(chosen), around=around, outputs=outputs)
        # a row's length scales the product and its update
        self._add(inner=step.rank * len(chosen) + 2 * lengths, gated=_gated(chosen))

    def _add_gated(self, step: LlamaAdapter) -> None:
        model = self.model
        layers = [model.layer(number) for number in range(step.below, model.layers)]
        self.hung |= {f"blocks.{number}." for number in range(step.below, model.layers)}
        self._add(trained=sum(step.length * layer.width + layer.heads for layer in layers))
        # scores before and after the softmax, and what the heads find
        self._add(inner=sum(layer.heads * (2 * step.length + layer.head_dim) for layer in layers))
        if isinstance(step, LlamaAdapterV2):
            scaled = sum(each.shape[0] for each in self._chosen(step.targets))
            self.frozen -= {each.name for each in self.parameters if each.role == "norm"}
            self._add(trained=2 * scaled, inner=scaled)

    def _freeze(self, step: Freeze) -> None:
        for glob in step.names:
            names = {each.name for each in self.parameters if fnmatchcase(each.name, glob)}
            if not names:
                raise UsageError(f"surgery freeze names: {glob!r} matches no parameter that the planner knows")
            self.frozen |= names

    def result(self) -> Adapted:
        """What is left."""
        trains = [each for each in self.parameters if each.name not in self.frozen]
        blocks = [each for each in self.parameters if "blocks." in each.name]
        matrices = [each for each in blocks if each.role == "matrix"]
        still = sum(each.size for each in matrices if each.name in self.frozen) / sum(each.size for each in matrices)
        output = "embedding.weight" if getattr(self.model.head, "tied", False) else "head.weight"
        norms = {each.name for each in self.parameters if each.role == "norm"}
        added = self.found.pop("trained", 0)
        if not (values := added + sum(each.size for each in trains)):
            raise UsageError("surgery: nothing is left to train")
        first = self._first({each.name for each in trains} | self.hung, ahead=bool(added and not self.hung))
        still_head, still_norms = output in self.frozen, norms <= self.frozen
        base = sum(each.size for each in self.parameters)
        found = Adapted(values, added, base, is_head_frozen=still_head, is_norm_frozen=still_norms, frozen=still)
        return replace(found, first=first, **self.found)

    def _first(self, names: set[str], *, ahead: bool) -> int:
        """ahead: something that stands before the first block is trained."""
        if ahead or self.model.kind == "encoder_decoder" or self.model.head.generator_of(self.model) is not None:
            return 0
        behind = ("norm.", "head.", "mtp.")
        if any(not name.startswith(("blocks.", *behind)) for name in names):
            return 0
        numbers = [int(name.split(".")[1]) for name in names if name.startswith("blocks.")]
        return min(numbers, default=self.model.layers)


def _gated(chosen: Sequence[Weight]) -> int:
    return sum(each.shape[1] for each in chosen if each.layer.endswith("mlp.down"))


def _prefix_values(model: ModelConfig, step: PrefixConfig) -> int:
    """Keys and values of all layers, or of the network that makes them."""
    width = model.embedding.width or model.width
    widths = [2 * layer.kv_heads * layer.head_dim for layer in map(model.layer, range(model.layers))]
    if step.hidden is None:
        return step.length * sum(widths)
    return step.length * width + step.hidden * (width + 1) + (step.hidden + 1) * sum(widths)


def _code_bytes(size: int, block: int) -> int:
    """Codes, a scale of a byte for each block, ranges of scales and their mean."""
    blocks = size // block
    return -(-size // 2) + blocks + 4 * -(-blocks // SCALES_PER_BLOCK) + 4
