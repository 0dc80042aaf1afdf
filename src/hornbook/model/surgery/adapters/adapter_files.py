"""Adapter folders as peft writes them: adapter_config.json and adapter_model.safetensors.

LoRA, rsLoRA, DoRA, IA3, soft prompts and prefixes load in peft; what it does not have (bottlenecks, IA3 on part of a
matrix of transformers, a prefix with its network, gates of single heads) has the same two files under our names. The
safetensors' metadata holds the steps and a digest of the base, so that an adapter meets no other.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

import xxhash
from pydantic import TypeAdapter, ValidationError
from torch import Tensor

from hornbook.errors import IntegrityError
from hornbook.files.durable import storage_errors
from hornbook.files.json_files import read_json, write_json
from hornbook.files.safetensors import read_header, read_metadata
from hornbook.model.config import surgery_config as surgery
from hornbook.model.config.head_config import LabelHeadConfig
from hornbook.model.config.model_config import ModelConfig
from hornbook.model.hf.hf_config import choose_architecture
from hornbook.model.hf.hf_layout import lay_out
from hornbook.model.hf.hf_tokenizer import copy_tokenizer
from hornbook.model.storage.tensor_slices import TensorSlice, Writer, create_file, whole
from hornbook.model.surgery.adapters.lora_layout import (
    PREFIX,
    Placement,
    TheirModule,
    head_modules,
    head_placements,
    ia3_placements,
    layer_of,
    lora_placements,
    short_names,
    their_modules,
)
from hornbook.model.surgery.operate import added_shapes

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
OWN = "hornbook"
"""Key of the metadata, and of what peft does not know."""
TASKS = {"decoder": "CAUSAL_LM", "encoder": None, "encoder_decoder": "SEQ_2_SEQ_LM"}
"""peft's names of the families; it has none for masked models."""
LABEL_TASKS = {
    "classification": "SEQ_CLS",
    "regression": "SEQ_CLS",
    "token_classification": "TOKEN_CLS",
    "span": "QUESTION_ANS",
}
"""peft's names of what heads for labels do."""
_STEPS = TypeAdapter(list[surgery.SurgeryStep])


@dataclass(frozen=True)
class AdapterSpec:
    """What an adapter folder is made for."""

    config: ModelConfig
    vocab: int
    steps: tuple[surgery.SurgeryStep, ...]
    base: str
    """Path of the base's folder, as adapter_config.json names it."""
    base_digest: str

    @property
    def adapter(self) -> surgery.AdapterStep:
        """The step whose parameters are stored."""
        found = surgery.adapter_of(self.steps)
        assert found is not None
        return found


def is_adapter(folder: Path) -> bool:
    """Whether a folder holds an adapter; adapter_config.json beside the weights of a model does not make it one."""
    return (folder / CONFIG).is_file() and not any(folder.glob("model*.safetensors"))


def placements(spec: AdapterSpec) -> dict[str, Placement]:
    """Where each of the added tensors lies in adapter_model.safetensors."""
    shapes, step = added_shapes(spec.config, spec.vocab, spec.steps), spec.adapter
    if isinstance(step, surgery.Lora):
        head = head_placements(spec.config, spec.vocab) if isinstance(spec.config.head, LabelHeadConfig) else {}
        return lora_placements(_modules(spec, step, shapes), step) | head
    if isinstance(step, surgery.Ia3Config) and (modules := ia3_modules(spec, step, shapes)):
        head = head_placements(spec.config, spec.vocab) if isinstance(spec.config.head, LabelHeadConfig) else {}
        return ia3_placements(modules, _scaled_inputs(shapes)) | head
    if _is_prefix_of_theirs(step, shapes):
        return _prefix_placements(shapes)
    names = {"embedding.prompt.weight": "prompt_embeddings"} if isinstance(step, surgery.PromptConfig) else {}
    return {
        name: Placement(names.get(name, PREFIX + name), shape, shape, (0,) * len(shape))
        for name, shape in shapes.items()
    }


def _is_prefix_of_theirs(
    step: surgery.AdapterStep, shapes: Mapping[str, tuple[int, ...]]
) -> TypeGuard[surgery.PrefixConfig]:
    """Whether it is a prefix as peft stores it: without a network, of the same shape in every layer."""
    return isinstance(step, surgery.PrefixConfig) and step.hidden is None and len(set(shapes.values())) == 1


def _prefix_placements(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Placement]:
    """One matrix of peft's: of each vector the keys and the values of every layer, in order."""
    length, width = next(iter(shapes.values()))
    whole = length, width * len(shapes)
    return {
        name: Placement("prompt_embeddings", whole, shape, (0, width * number))
        for number, (name, shape) in enumerate(shapes.items())
    }


def _modules(spec: AdapterSpec, step: surgery.Lora, added: Iterable[str]) -> list[TheirModule]:
    layers = [name.removesuffix(".adapter.a") for name in added if name.endswith(".adapter.a")]
    return their_modules(spec.config, spec.vocab, step, layers)


def ia3_modules(spec: AdapterSpec, step: surgery.Ia3Config, added: Mapping[str, Any]) -> list[TheirModule] | None:
    """The modules of transformers that have the factors; None where they are of a part of one."""
    layers = [name.removesuffix(".adapter.scale") for name in added if name.endswith(".adapter.scale")]
    layout = lay_out(spec.config, spec.vocab, choose_architecture(spec.config))
    modules, inputs = their_modules(spec.config, spec.vocab, step, layers), _scaled_inputs(added)
    whole = all(len(module.parts) == len(layout[f"{module.name}.weight"]) for module in modules)
    alone = all(len(each.parts) == 1 for each in modules if layer_of(each.parts[0]) in inputs)
    return modules if whole and alone else None


def _scaled_inputs(added: Mapping[str, tuple[int, ...]]) -> list[str]:
    """Layers whose inputs have factors [1, in]."""
    scales = {name.removesuffix(".adapter.scale"): each for name, each in added.items() if name.endswith(".scale")}
    return [name for name, shape in scales.items() if shape[0] == 1]


def create_adapter(folder: Path, spec: AdapterSpec, tokenizer: Path | None) -> None:
    """Write every file of an adapter folder, the tensors still zero. Raises OSError, StorageError."""
    folder.mkdir(exist_ok=True)
    shapes = {placement.theirs: placement.shape for placement in placements(spec).values()}
    steps = [step.model_dump(mode="json") for step in spec.steps]
    own = json.dumps({"base_digest": spec.base_digest, "surgery": steps}, sort_keys=True)
    create_file(folder / WEIGHTS, shapes, metadata={"format": "pt", OWN: own})
    write_json(folder / CONFIG, adapter_config(spec))
    if tokenizer is not None:
        copy_tokenizer(tokenizer, folder, spec.config.position.length, types=spec.config.embedding.types > 1)


def fill_adapter(folder: Path, spec: AdapterSpec, tensor_slices: Mapping[str, TensorSlice]) -> None:
    """Write slices of the added tensors into what `create_adapter` made; afterwards they are on disk."""
    entries = read_header(folder / WEIGHTS)
    with Writer() as writer:
        for name, placement in placements(spec).items():
            if name in tensor_slices:
                for part in placement.tensor_slices(tensor_slices[name]):
                    writer.write(entries[placement.theirs], TensorSlice(part.tensor.float().cpu(), part.start))


def adapter_config(spec: AdapterSpec) -> dict[str, Any]:
    """The content of adapter_config.json."""
    step, common = spec.adapter, {"base_model_name_or_path": spec.base, "inference_mode": True}
    if isinstance(step, surgery.Lora):
        return common | _lora_config(spec, step)
    if isinstance(step, surgery.Ia3Config):
        return common | _ia3_config(spec, step)
    if isinstance(step, surgery.PromptConfig):
        return common | {
            "peft_type": "PROMPT_TUNING",
            "task_type": LABEL_TASKS.get(spec.config.head.kind, "CAUSAL_LM"),
            "num_virtual_tokens": step.length,
            "token_dim": spec.config.width,
            "num_transformer_submodules": 1,
            "num_attention_heads": spec.config.heads,
            "num_layers": spec.config.layers,
            "prompt_tuning_init": "RANDOM",
        }
    if _is_prefix_of_theirs(step, added_shapes(spec.config, spec.vocab, spec.steps)):
        return common | _prefix_config(spec.config, step.length)
    settings = step.model_dump(mode="json", exclude={"kind"})
    return common | {"peft_type": f"{OWN}_{step.kind}".upper(), **settings}


def _prefix_config(config: ModelConfig, length: int) -> dict[str, Any]:
    heads = config.layer(0).kv_heads
    return {
        "peft_type": "PREFIX_TUNING",
        "task_type": LABEL_TASKS.get(config.head.kind, "CAUSAL_LM"),
        "num_virtual_tokens": length,
        "token_dim": heads * config.head_dim,
        "num_transformer_submodules": 1,
        "num_attention_heads": heads,
        "num_layers": config.layers,
        "prefix_projection": False,
        "encoder_hidden_size": None,
    }


def _ia3_config(spec: AdapterSpec, step: surgery.Ia3Config) -> dict[str, Any]:
    added = added_shapes(spec.config, spec.vocab, spec.steps)
    modules, inputs = ia3_modules(spec, step, added), _scaled_inputs(added)
    if modules is None:
        return {"peft_type": "HORNBOOK_IA3", "targets": step.targets, "inputs": step.inputs}
    layout = lay_out(spec.config, spec.vocab, choose_architecture(spec.config))
    read = [module.name for module in modules if layer_of(module.parts[0]) in inputs]
    return {
        "peft_type": "IA3",
        "task_type": LABEL_TASKS.get(spec.config.head.kind, TASKS[spec.config.kind]),
        "target_modules": short_names([module.name for module in modules], layout),
        "feedforward_modules": short_names(read, layout),
        "fan_in_fan_out": any(module.transpose for module in modules),
        **({"modules_to_save": head_modules(layout)} if isinstance(spec.config.head, LabelHeadConfig) else {}),
    }


def _lora_config(spec: AdapterSpec, step: surgery.Lora) -> dict[str, Any]:
    modules = _modules(spec, step, added_shapes(spec.config, spec.vocab, spec.steps))
    layout = lay_out(spec.config, spec.vocab, choose_architecture(spec.config))
    fused = {module.name: len(module.parts) for module in modules if len(module.parts) > 1}
    targets = short_names([module.name for module in modules], layout)
    names = {name: next((short for short in targets if name.endswith(f".{short}")), name) for name in fused}
    growth = {name: count if step.scaling == "rank" else count**0.5 for name, count in fused.items()}
    return {
        "peft_type": "LORA",
        "task_type": LABEL_TASKS.get(spec.config.head.kind, TASKS[spec.config.kind]),
        "r": step.rank,
        "lora_alpha": step.alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "use_rslora": step.scaling == "root_rank",
        "use_dora": isinstance(step, surgery.Dora),
        "fan_in_fan_out": any(module.transpose for module in modules),
        "target_modules": targets,
        "rank_pattern": {names[name]: step.rank * count for name, count in fused.items()},
        "alpha_pattern": {names[name]: step.alpha * growth[name] for name in fused},
        **({"modules_to_save": head_modules(layout)} if isinstance(spec.config.head, LabelHeadConfig) else {}),
    }


@dataclass(frozen=True)
class StoredMeta:
    """What the metadata of adapter_model.safetensors says; None where another program wrote it."""

    steps: tuple[surgery.SurgeryStep, ...] | None
    base_digest: str | None


def read_meta(folder: Path) -> StoredMeta:
    """Our part of the metadata of an adapter folder. IntegrityError if it is damaged."""
    path = folder / WEIGHTS
    text = read_metadata(path).get(OWN)
    if text is None:
        return StoredMeta(None, None)
    try:
        own = json.loads(text)
        return StoredMeta(tuple(_STEPS.validate_python(own["surgery"])), str(own["base_digest"]))
    except (ValueError, KeyError, TypeError, ValidationError) as error:
        raise IntegrityError(f"{path}: the metadata {OWN!r} cannot be read: {error}") from error


def base_of(folder: Path) -> Path:
    """Folder of the base: `base` of the run that wrote this, else what adapter_config.json names.

    IntegrityError if there is none.
    """
    named = read_json(folder / CONFIG).get("base_model_name_or_path")
    candidates = [folder / named, Path(named)] if isinstance(named, str) and named else []
    for path in candidates:
        if (path / "config.json").is_file():
            return path.resolve()
    raise IntegrityError(
        f"{folder / CONFIG}: base_model_name_or_path is {named!r}, and there is no model folder: put it there, or "
        "write the path of the base into that key"
    )


def tensors_digest(tensors: Iterable[tuple[str, Tensor]]) -> str:
    """XXH3-128 of names, shapes and float32 values in our names: the same for every way a model may be stored."""
    total = 0
    for name, tensor in tensors:
        one = xxhash.xxh3_128(f"{name} {list(tensor.shape)}".encode())
        one.update(tensor.float().contiguous().numpy().data if tensor.numel() else b"")
        total ^= one.intdigest()  # in any order
    return f"{total:032x}"


def check_base(folder: Path, expected: str | None, found: str, base: Path) -> None:
    """IntegrityError if an adapter was made for another base than it meets."""
    if expected is not None and expected != found:
        raise IntegrityError(
            f"{folder}: this adapter was trained on a base with digest {expected}, found {found} in {base}: name the "
            f"right base in {CONFIG} (base_model_name_or_path)"
        )


def write_adapter(folder: Path, spec: AdapterSpec, added: Mapping[str, Tensor], tokenizer: Path | None = None) -> None:
    """Write an adapter folder; `added` are its tensors by our names. Raises StorageError."""
    with storage_errors(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        create_adapter(folder, spec, tokenizer)
        fill_adapter(folder, spec, {name: whole(tensor.detach()) for name, tensor in added.items()})
