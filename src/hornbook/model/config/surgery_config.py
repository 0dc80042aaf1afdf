"""Configuration of module surgery: what is done to a built model before it is spread over devices.

A step is a `kind`; the steps of a recipe are done in order. A new kind is one frozen config here, whose `builder` names
the function that does it: (model, step) -> None.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from hornbook.model.config.part import Part
from hornbook.settings.fields import Config, Count, Number

LINEARS = ["*blocks.*"]
"""Every linear layer of the blocks: not the embedding, not the head, no norm."""


class Lora(Part):
    """Low-rank update of frozen linear layers (Hu et al. 2021, arXiv 2106.09685): W + scaling B A."""

    builder = "surgery.adapters.lora:add_lora"
    kind: Literal["lora"] = "lora"
    targets: list[str] = Field(default=LINEARS, min_length=1)
    """Globs over names of linear layers; one that matches none is an error."""
    rank: Count = Field(default=8, ge=1)
    """Rows of A and columns of B."""
    alpha: Number = Field(default=16, gt=0)
    """The update is scaled by alpha / rank, or by alpha / sqrt(rank)."""
    scaling: Literal["rank", "root_rank"] = "rank"
    """`root_rank` is rsLoRA (Kalajdzievski 2023, arXiv 2312.03732)."""

    @property
    def factor(self) -> float:
        """What B A is multiplied by."""
        return self.alpha / (self.rank if self.scaling == "rank" else self.rank**0.5)


class Dora(Lora):
    """LoRA of the direction of each row of W, and its length, both trained (Liu et al. 2024, arXiv 2402.09353)."""

    kind: Literal["dora"] = "dora"  # pyright: ignore[reportIncompatibleVariableOverride]


class BottleneckConfig(Part):
    """Adapters of Houlsby et al. 2019 (arXiv 1902.00751): y + up(gelu(down(y))) after frozen projections."""

    builder = "surgery.adapters.bottleneck:add_bottleneck"
    kind: Literal["bottleneck"] = "bottleneck"
    targets: list[str] = Field(default=["*.attention.out", "*.mlp.down"], min_length=1)
    """Globs over names of linear layers."""
    width: Count = Field(default=64, ge=1)
    """Inner width of the adapter."""


class Ia3Config(Part):
    """Factors on outputs and inputs of frozen layers (IA3, Liu et al. 2022, arXiv 2205.05638)."""

    builder = "surgery.adapters.ia3:add_ia3"
    kind: Literal["ia3"] = "ia3"
    targets: list[str] = Field(default=["*.attention.key", "*.attention.value", "*.mlp.down"], min_length=1)
    """Globs over names of linear layers, each output of which has a factor."""
    inputs: list[str] = Field(default=["*.mlp.down"])
    """Globs over those of the targets whose inputs have the factors instead."""


class PromptConfig(Part):
    """Prompt tuning (Lester et al. 2021, arXiv 2104.08691): trained vectors before each document, all else frozen."""

    builder = "surgery.adapters.prompt:add_prompt"
    kind: Literal["prompt"] = "prompt"
    length: Count = Field(default=16, ge=1)
    """Vectors, which take as many positions."""


class PrefixConfig(Part):
    """Prefix tuning (Li and Liang 2021, arXiv 2101.00190): trained keys and values of each layer before documents."""

    builder = "surgery.adapters.prefix:add_prefix"
    kind: Literal["prefix"] = "prefix"
    length: Count = Field(default=16, ge=1)
    """Keys and values of each layer, which take as many positions."""
    hidden: Count | None = Field(default=None, ge=1)
    """Hidden width of the network that makes them of trained vectors (section 4.3 of the paper); `none`: no network."""


class LlamaAdapter(Part):
    """LLaMA-Adapter (Zhang et al. 2023, arXiv 2303.16199): gated attention to trained vectors in upper layers."""

    builder = "surgery.adapters.gated:add_gated"
    kind: Literal["llama_adapter"] = "llama_adapter"
    length: Count = Field(default=10, ge=1)
    """Vectors of each layer; they take no positions."""
    below: Count = Field(default=2, ge=0)
    """Lower layers without vectors; the paper has 2 of 32."""


class LlamaAdapterV2(LlamaAdapter):
    """LLaMA-Adapter V2 (Gao et al. 2023, arXiv 2304.15010): norms, and a scale and a bias of each layer, learn too."""

    kind: Literal["llama_adapter_v2"] = "llama_adapter_v2"  # pyright: ignore[reportIncompatibleVariableOverride]
    targets: list[str] = Field(default=LINEARS, min_length=1)
    """Globs over names of linear layers that have a scale and a bias."""


class Freeze(Part):
    """Parameters that are not trained."""

    builder = "surgery.operate:freeze"
    kind: Literal["freeze"] = "freeze"
    names: list[str] = Field(min_length=1)
    """Globs over names of parameters; one that matches none is an error."""


class Sparse(Part):
    """Weights that are 0 stay 0 in training: what `hornbook prune --sparse` took out is not brought back."""

    builder = "surgery.sparsity:keep_zeros"
    kind: Literal["sparse"] = "sparse"
    targets: list[str] = Field(default=LINEARS, min_length=1)
    """Globs over names of linear layers."""


class Nf4(Part):
    """Frozen weights in 4-bit NormalFloat with quantized scales (QLoRA, Dettmers et al. 2023, arXiv 2305.14314)."""

    builder = "surgery.quantization.nf4:add_nf4"
    kind: Literal["nf4"] = "nf4"
    targets: list[str] = Field(default=LINEARS, min_length=1)
    """Globs over names of linear layers."""
    block: Count = Field(default=64, ge=1)
    """Consecutive values of a row that share a scale."""


class Grid(Config):
    """Integers in place of the weights of a linear layer, and which of them share a scale."""

    bits: Count = Field(default=4, ge=2, le=8)
    """Of each integer."""
    per: Literal["tensor", "channel", "group"] = "group"
    """One scale for a matrix, for each of its rows (outputs), or for each group of a row."""
    group: Count = Field(default=32, ge=1)
    """Consecutive values of a row that share a scale, where `per` is group; it divides the row."""
    symmetric: bool = True
    """Zero in the middle of the range; otherwise the range follows smallest and largest value."""


class Integers(Grid):
    """Weights as integers after training; no step of a recipe, for nothing of it is trained."""

    kind: Literal["integers"] = "integers"
    targets: list[str] = Field(default=LINEARS, min_length=1)
    """Globs over names of linear layers."""


class FakeQuant(Grid, Part):
    """Quantization-aware training: forward computes with rounded weights, gradients pass the rounding (STE)."""

    builder = "surgery.quantization.fake_quant:add_fake_quant"
    kind: Literal["fake_quant"] = "fake_quant"
    targets: list[str] = Field(default=LINEARS, min_length=1)
    """Globs over names of linear layers."""
    scales: Literal["range", "learned"] = "range"
    """From the present largest value, or trained (LSQ, Esser et al. 2020, arXiv 1902.08153; symmetric only)."""


def _named_kind(value: Any) -> Any:
    """`surgery = ["lora"]`: a bare word is a kind with its defaults."""
    return {"kind": value} if isinstance(value, str) else value


AdapterStep = Lora | Dora | BottleneckConfig | Ia3Config | PromptConfig | PrefixConfig | LlamaAdapter | LlamaAdapterV2
"""Steps that freeze the model and train what they add: a checkpoint holds no more than that."""

SurgeryStep = Annotated[AdapterStep | Freeze | Sparse | Nf4 | FakeQuant, Field(discriminator="kind")]
Surgery = list[Annotated[SurgeryStep, BeforeValidator(_named_kind)]]

ADAPTERS = "lora, dora, bottleneck, ia3, prompt, prefix, llama_adapter, llama_adapter_v2"
"""Their kinds, as messages name them."""


def positions_ahead(steps: Sequence[Any]) -> int:
    """Positions that prompts and prefixes take before each document."""
    return sum(step.length for step in steps if isinstance(step, PromptConfig | PrefixConfig))


def adapter_of(steps: Sequence[Any]) -> AdapterStep | None:
    """The step that adds an adapter, if there is one."""
    return next((step for step in steps if isinstance(step, AdapterStep)), None)


def surgery_problems(steps: Sequence[Any]) -> list[str]:
    """Why these steps do not go together; empty if they do."""
    kinds = [step.kind for step in steps]
    problems = []
    if sum(isinstance(step, AdapterStep) for step in steps) > 1:
        problems.append(f"one of {ADAPTERS} is enough, found {', '.join(kinds)}")
    if "nf4" in kinds and adapter_of(steps[kinds.index("nf4") :]) is None:
        problems.append(f"weights in nf4 are frozen: add one of {ADAPTERS} behind it")
    if "sparse" in kinds and adapter_of(steps) is not None:
        problems.append(
            f"sparse keeps zeros of weights in training, which {' and '.join(kinds)} would freeze: leave it out"
        )
    if "fake_quant" in kinds and ("nf4" in kinds or adapter_of(steps) is not None):
        problems.append(f"fake_quant trains the weights themselves, which {' and '.join(kinds)} would freeze")
    if any(step.kind == "fake_quant" and step.scales == "learned" and not step.symmetric for step in steps):
        problems.append('fake_quant: scales = "learned" needs symmetric = true')
    return problems
