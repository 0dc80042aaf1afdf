"""A decoder as a GGUF file, for llama.cpp and what is built on it.

Tensors go by way of their names in transformers (`hf/tables`): a table here says how llama.cpp calls each. What
its architectures cannot hold is refused by name. llama.cpp turns pairs of neighbours in `llama`, so rows of queries
and keys are reordered there; in the Qwen architectures it turns halves, as transformers does.
"""

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from hornbook.errors import UsageError
from hornbook.files.durable import storage_errors
from hornbook.model.config.attention_config import FullAttentionConfig
from hornbook.model.config.model_config import ModelConfig
from hornbook.model.config.position_config import LinearScaling, NoScaling, RopeConfig
from hornbook.model.export.gguf import BLOCK, FILE_TYPES, Dtype, TensorInfo, Value, write_gguf
from hornbook.model.export.gguf_tokenizer import tokenizer_metadata
from hornbook.model.hf.hf_config import choose_architecture
from hornbook.model.hf.hf_layout import lay_out, stored_shape

FILE = "model.gguf"
_TABLE: dict[str, Any] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
Architectures: dict[str, dict[str, Any]] = _TABLE["architectures"]
Names: dict[str, str] = _TABLE["tensors"]


@dataclass(frozen=True)
class GgufPlan:
    """How a model is written."""

    architecture: str
    """As llama.cpp calls it."""
    metadata: Mapping[str, Value]
    infos: tuple[TensorInfo, ...]
    sources: tuple[str, ...]
    """Our parameter of each tensor."""
    permuted: tuple[int | None, ...]
    """Heads of each tensor whose rows are reordered."""


def plan_gguf(config: ModelConfig, vocab: int, dtype: Dtype, tokenizer: Path | None, name: str) -> GgufPlan:
    """What a file of this model would hold. Raises UsageError, naming what cannot be mapped."""
    architecture = _architecture(config)
    kind = Architectures[architecture]
    if tokenizer is None:
        raise UsageError("a GGUF file needs a tokenizer, and there is no tokenizer.json beside this model")
    metadata: dict[str, Value] = {
        "general.architecture": kind["name"],
        "general.name": name,
        "general.file_type": FILE_TYPES[dtype],
        **_shape_metadata(config, vocab, kind["name"]),
        **tokenizer_metadata(tokenizer, vocab),
    }
    infos, sources, permuted = [], [], []
    heads = {"q_proj": config.heads, "k_proj": config.kv_heads}
    chosen = choose_architecture(config)
    for theirs, parts in lay_out(config, vocab, chosen).items():
        shape = stored_shape(parts)
        infos.append(TensorInfo(_rename(theirs), shape, _dtype(shape, dtype, theirs)))
        sources.append(parts[0].name)
        part = theirs.split(".")[-2]
        permuted.append(heads.get(part) if kind["neighbours"] else None)
    return GgufPlan(kind["name"], metadata, tuple(infos), tuple(sources), tuple(permuted))


def write_model(folder: Path, plan: GgufPlan, tensors: Mapping[str, Tensor]) -> Path:
    """Write the file into `folder`; `tensors` are our parameters by name. Raises StorageError."""
    path = folder / FILE

    def values() -> Iterator[Tensor]:
        for source, heads in zip(plan.sources, plan.permuted, strict=True):
            yield tensors[source] if heads is None else to_neighbours(tensors[source], heads)

    with storage_errors(path), path.open("wb") as file:
        write_gguf(file, plan.metadata, plan.infos, values())
    return path


def to_neighbours(weight: Tensor, heads: int) -> Tensor:
    """Rows of each head so that what turns together, i and i + half, stands side by side."""
    return weight.unflatten(0, (heads, 2, -1)).transpose(1, 2).reshape(weight.shape)


def _architecture(config: ModelConfig) -> str:
    """Which of the table's architectures, by its name in transformers. Raises UsageError."""
    chosen = choose_architecture(config)
    name = "none that transformers knows" if chosen is None else chosen.name
    if chosen is None or name not in Architectures:
        known = ", ".join(Architectures)
        raise UsageError(f"--to gguf writes {known}; this model is {name}: export it with --to hf")
    position = config.position
    assert isinstance(position, RopeConfig)
    assert isinstance(config.attention, FullAttentionConfig)
    refused = {
        f"model.position.scaling of kind {position.scaling.kind!r}": not isinstance(
            position.scaling, NoScaling | LinearScaling
        ),
        "model.attention.window": config.attention.window is not None,
        "model.attention.bias in a LLaMA": name == "LlamaForCausalLM" and config.attention.bias,
        "biases of the MLP": bool(getattr(config.mlp, "bias", False)),
        "model.first or model.pattern (layers that differ)": bool(config.first or config.pattern),
    }
    if wrong := [what for what, found in refused.items() if found]:
        raise UsageError(f"--to gguf has nothing for {' and '.join(wrong)}: export this model with --to hf")
    return name


def _shape_metadata(config: ModelConfig, vocab: int, name: str) -> dict[str, Value]:
    position, hidden = config.position, getattr(config.mlp, "hidden", None)
    assert isinstance(position, RopeConfig)
    scaling = position.scaling
    found: dict[str, Value] = {
        "vocab_size": vocab,
        "context_length": position.length,
        "embedding_length": config.width,
        "block_count": config.layers,
        "feed_forward_length": hidden or _hidden(config),
        "attention.head_count": config.heads,
        "attention.head_count_kv": config.kv_heads,
        "attention.key_length": config.head_dim,
        "attention.value_length": config.head_dim,
        "attention.layer_norm_rms_epsilon": float(getattr(config.norm, "eps", 1e-6)),
        "rope.dimension_count": config.head_dim,
        "rope.freq_base": float(position.theta),
    }
    if isinstance(scaling, LinearScaling):
        found |= {"rope.scaling.type": "linear", "rope.scaling.factor": float(scaling.factor)}
    return {f"{name}.{key}": value for key, value in found.items()}


def _hidden(config: ModelConfig) -> int:
    """Inner width of the MLP where it follows from the model's."""
    shapes = lay_out(config, 1, choose_architecture(config))
    return stored_shape(shapes["model.layers.0.mlp.gate_proj.weight"])[0]


def _rename(theirs: str) -> str:
    number = re.search(r"(?<=\blayers\.)\d+(?=\.)", theirs)
    pattern = theirs if number is None else f"{theirs[: number.start()]}{{i}}{theirs[number.end() :]}"
    stem, _, ending = pattern.rpartition(".")
    return f"{Names[stem]}.{ending}".replace("{i}", "" if number is None else number[0])


def _dtype(shape: tuple[int, ...], dtype: Dtype, name: str) -> Dtype:
    """Vectors stay float32. Raises UsageError where rows have no whole number of blocks."""
    if len(shape) == 1:
        return "fp32"
    if dtype == "q8_0" and shape[-1] % BLOCK:
        raise UsageError(
            f"--dtype q8_0 stores rows of multiples of {BLOCK} values, and those of {name} have {shape[-1]}"
        )
    return dtype
