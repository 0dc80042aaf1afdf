"""Initial values, per logical matrix: each one's numbers are a pure function of (seed, its name).

Which distribution a matrix has is the scheme's affair (`hornbook.model.init.schemes`), unless its module says
otherwise or the recipe overrides it. Here numbers are drawn, one matrix at a time, whatever else there is: another
order, another mesh, a part of the model alone give the same ones.
"""

import difflib
import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase

import torch
from torch import Generator, Tensor, nn

from hornbook.errors import UsageError
from hornbook.model.build_model import build_model, parameter_roles
from hornbook.model.config import init_config as config_init
from hornbook.model.config import model_config as config
from hornbook.model.config.init_config import Distribution
from hornbook.model.config.model_config import ModelConfig
from hornbook.model.init.schemes import Matrix, distribution
from hornbook.model.layers.linear import Linear

Own = Distribution | Callable[[tuple[int, ...], Generator], Tensor]
"""What a module's attribute `initial` gives for one of its parameters: a distribution, or a function of shape and
generator that makes float32 values on the CPU. For parameters whose role does not say how they begin."""


def initialize(model: nn.Module, cfg: ModelConfig, seed: int) -> None:
    """Fill every parameter of a materialised model in place."""
    with torch.no_grad():
        for name, value in initial_values(model, cfg, seed):
            model.get_parameter(name).copy_(value)


def initial_values(model: nn.Module, cfg: ModelConfig, seed: int, under: str = "") -> Iterator[tuple[str, Tensor]]:
    """Name and initial values (float32, CPU) of every parameter, one at a time; the model may be on meta or cut.

    under: only of names that begin so. Raises UsageError if an override is about no parameter of a whole model.
    """
    roles, shapes = parameter_roles(model), {name: tuple(each.shape) for name, each in model.named_parameters()}
    check_overrides(cfg, shapes)
    for name, shape in shapes.items():
        if not name.startswith(under):
            continue
        module, _, own = name.rpartition(".")
        given: Mapping[str, Own] = getattr(model.get_submodule(module), "initial", {})
        yield name, initial_value(name, roles[name], shape, cfg, seed, given.get(own))


def with_new_head(
    base: Iterable[tuple[str, Tensor]], cfg: ModelConfig, vocab: int, seed: int
) -> Iterator[tuple[str, Tensor]]:
    """The parameters of another model of the same stack, but that those of the head have first values for `cfg`."""
    yield from ((name, tensor) for name, tensor in base if not name.startswith("head."))
    yield from initial_values(build_model(cfg, vocab, "meta"), cfg, seed, under="head.")


def initial_value(
    name: str, role: str, shape: tuple[int, ...], cfg: ModelConfig, seed: int, own: Own | None = None
) -> Tensor:
    """Values of one parameter (float32, CPU); `own` is what its module says of it."""
    parts = logical_matrices(name, shape)
    values = [_matrix_values(Matrix(each, role, size, cfg), seed, own) for each, size in parts]
    return values[0] if parts[0][0] == name else torch.stack(values)


def logical_matrices(name: str, shape: tuple[int, ...]) -> list[tuple[str, tuple[int, ...]]]:
    """Names and shapes of what lies in a parameter: itself, or the matrices of its experts, each by its number."""
    if len(shape) == 3 and name.endswith((".gate", ".up", ".down")):
        return [(f"{name}.{expert}", shape[1:]) for expert in range(shape[0])]
    return [(name, shape)]


def _matrix_values(matrix: Matrix, seed: int, own: Own | None) -> Tensor:
    generator = torch.Generator().manual_seed(name_seed(seed, matrix.name))
    chosen = overriding(matrix.name, matrix.model.init) or own or distribution(matrix)
    if not isinstance(chosen, config.Config):
        return chosen(matrix.shape, generator)
    return DRAWS[type(chosen)](chosen, torch.empty(matrix.shape), generator)


def name_seed(seed: int, name: str) -> int:
    """63 bits of a hash of (seed, name)."""
    digest = hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


# ---- Overrides


def overriding(name: str, scheme: config_init.Scheme) -> Distribution | None:
    """The last override about a logical matrix, None if there is none."""
    found = [each for glob, each in scheme.overrides.items() if _concerns(glob, name)]
    return found[-1] if found else None


def _concerns(glob: str, name: str) -> bool:
    """`blocks.*.mlp.down` means the parameter `blocks.0.mlp.down.weight`, and every expert of `blocks.0.mlp.down`."""
    whole, _, number = name.rpartition(".")
    spellings = [name, name.removesuffix(".weight"), *([whole] if number.isdigit() else [])]
    return any(fnmatchcase(spelling, glob) for spelling in spellings)


def check_overrides(cfg: ModelConfig, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """UsageError unless every override is about a parameter, and can be drawn in its shape."""
    logical = [part for name, shape in shapes.items() for part in logical_matrices(name, shape)]
    for glob, chosen in cfg.init.overrides.items():
        concerned = [(name, shape) for name, shape in logical if _concerns(glob, name)]
        key = f'model.init.overrides."{glob}"'
        if not concerned:
            raise UsageError(f"{key} is about no parameter: {_hint(glob, [name for name, _ in logical])}")
        vectors = [name for name, shape in concerned if len(shape) < 2]
        if vectors and isinstance(chosen, config_init.OrthogonalValues):
            raise UsageError(f"{key} is about {vectors[0]} too, a vector: only matrices can be orthogonal")


def _hint(glob: str, names: list[str]) -> str:
    close = difflib.get_close_matches(glob, [name.removesuffix(".weight") for name in names], n=1)
    return f"did you mean {close[0]}?" if close else f"they are named like {names[0]} and {names[len(names) // 2]}"


# ---- Distributions


def _draw_truncated(chosen: config_init.TruncatedValues, out: Tensor, generator: Generator) -> Tensor:
    """Draw again what lies beyond the cut; torch's own function draws otherwise before 2.13."""
    uncut = chosen.std / truncated_std(chosen.cut)
    values = out.normal_(0.0, uncut, generator=generator)
    while not out.is_meta and (outside := values.abs() > chosen.cut * uncut).any():
        values = torch.where(outside, torch.empty_like(values).normal_(0.0, uncut, generator=generator), values)
    return out.copy_(values)


def truncated_std(cut: float) -> float:
    """Standard deviation of a standard normal distribution cut at +-cut (0.8796 at 2)."""
    density = math.exp(-cut * cut / 2) / math.sqrt(2 * math.pi)
    return math.sqrt(1 - 2 * cut * density / math.erf(cut / math.sqrt(2)))


DRAWS: dict[type, Callable[..., Tensor]] = {
    config_init.NormalValues: lambda chosen, out, source: out.normal_(0.0, chosen.std, generator=source),
    config_init.TruncatedValues: _draw_truncated,
    config_init.UniformValues: lambda chosen, out, source: out.uniform_(-chosen.bound, chosen.bound, generator=source),
    config_init.OrthogonalValues: lambda chosen, out, source: nn.init.orthogonal_(out, chosen.gain, generator=source),
    config_init.ConstantValues: lambda chosen, out, _: out.fill_(chosen.value),
}
"""Type of a distribution -> how its values are drawn into a tensor."""


# ---- Layer-sequential unit variance: matrices scaled by their outputs on real data (Mishkin and Matas, 1511.06422)
# Layers are visited in the order in which data reaches them. Each one's outputs are divided by their deviation, its
# weights with them, before any later layer sees them: so one forward pass sets all layers, and exactly.


class _Scaling(nn.Module):
    """Hangs on one layer, as adapters do, and scales it when its first outputs come by."""

    def forward(self, layer: Linear, x: Tensor, y: Tensor) -> Tensor:
        del x
        deviation = y.float().std()
        if not bool(torch.isfinite(deviation)) or deviation == 0:
            return y  # nothing reaches it: dead, or silenced by an override
        layer.weight.div_(deviation)
        return (y / deviation).to(y.dtype)


@torch.no_grad()
def scale_to_unit_variance(model: nn.Module, forward: Callable[[], object]) -> None:
    """Scale every Linear in place. `forward` runs the model once over a microbatch, without gradients.

    Layers have no bias other than zero yet. A layer that `forward` does not reach keeps its values; one
    reached twice is scaled twice.
    """
    layers = [module for module in model.modules() if isinstance(module, Linear)]
    before = [layer.adapter for layer in layers]
    try:
        for layer in layers:
            layer.adapter = _Scaling()
        with torch.compiler.set_stance("force_eager"):
            forward()
    finally:
        for layer, adapter in zip(layers, before, strict=True):
            layer.adapter = adapter
