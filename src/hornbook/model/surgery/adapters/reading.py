"""Adapter folders read: ours, and LoRA folders that peft wrote."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from hornbook.errors import IntegrityError, UsageError
from hornbook.files.safetensors import read_header
from hornbook.model.config import surgery
from hornbook.model.config.head import LabelHeadConfig
from hornbook.model.config.model import ModelConfig
from hornbook.model.hf.config import choose_architecture
from hornbook.model.hf.layout import lay_out
from hornbook.model.storage.safetensors_folder import Reader, mismatches, named, read_json, refuse_mismatches
from hornbook.model.surgery.adapters.files import CONFIG, WEIGHTS, AdapterSpec, placements, read_meta
from hornbook.model.surgery.adapters.lora_layout import (
    PREFIX,
    Placement,
    head_placements,
    layer_of,
    lora_placements,
    their_module,
)

_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "bias": ("none",),
    "lora_bias": (False,),
    "target_parameters": (None, []),
    "trainable_token_indices": (None,),
    "layer_replication": (None,),
    "use_qalora": (False,),
}
"""Keys of peft's that ask for what we do not have, and the values at which they do not."""


def read_adapter(
    folder: Path, config: ModelConfig, vocab: int
) -> tuple[tuple[surgery.SurgeryStep, ...], dict[str, Tensor]]:
    """(steps, added tensors by our names, float32) of an adapter folder for a base of this configuration.

    Raises IntegrityError where tensors are missing, unexpected or mis-shaped for it, UsageError where the adapter is
    of a kind we do not have.
    """
    meta = read_meta(folder)
    if meta.steps is None:
        step, where = _foreign(folder, config, vocab)
        return (step,), _read(folder, where)
    return meta.steps, _read(folder, placements(AdapterSpec(config, vocab, meta.steps, "", "")))


def _read(folder: Path, where: Mapping[str, Placement]) -> dict[str, Tensor]:
    entries, reader = read_header(folder / WEIGHTS), Reader()
    expected = {placement.theirs: placement.shape for placement in where.values()}
    refuse_mismatches(f"{folder}: this adapter does not fit its base", mismatches(expected, entries))
    whole = {name: reader.read(name, entry).float() for name, entry in entries.items()}
    return {name: placement.read(whole[placement.theirs]) for name, placement in where.items()}


def _foreign(folder: Path, config: ModelConfig, vocab: int) -> tuple[surgery.Lora, dict[str, Placement]]:
    """Step and places of a LoRA that peft wrote."""
    keys = read_json(folder / CONFIG)
    if keys.get("peft_type") != "LORA":
        raise UsageError(f"{folder / CONFIG}: peft_type {keys.get('peft_type')!r} is not read; LORA is")
    for key, neutral in _NEUTRAL.items():
        if key in keys and keys[key] not in neutral:
            raise UsageError(f"{folder / CONFIG}: {key} is {keys[key]!r}; only {neutral[0]!r} is read")
    if keys.get("rank_pattern") or keys.get("alpha_pattern"):
        raise UsageError(f"{folder / CONFIG}: rank_pattern or alpha_pattern is set; only one rank for all is read")
    modules, layout = [], lay_out(config, vocab, choose_architecture(config))
    head = _saved_head(folder, keys, config, vocab)
    whole = {placement.theirs for placement in head.values()}
    for module in sorted({_module_of(name) for name in read_header(folder / WEIGHTS) if name not in whole}):
        if f"{module}.weight" not in layout:
            raise IntegrityError(f"{folder}: {module} is no layer of its base, which has {named(layout, 3)}")
        modules.append(their_module(f"{module}.weight", layout[f"{module}.weight"]))
    targets = [layer_of(part) for module in modules for part in module.parts]
    kind = surgery.Dora if keys.get("use_dora") else surgery.Lora
    scaling = "root_rank" if keys.get("use_rslora") else "rank"
    step = kind(targets=targets, rank=int(keys["r"]), alpha=float(keys["lora_alpha"]), scaling=scaling)
    return step, lora_placements(modules, step, shared=True) | head


def _saved_head(folder: Path, keys: Mapping[str, Any], config: ModelConfig, vocab: int) -> dict[str, Placement]:
    """Where the head for labels lies that was trained whole."""
    saved, labelled = keys.get("modules_to_save") or [], isinstance(config.head, LabelHeadConfig)
    if labelled == bool(saved):
        return head_placements(config, vocab) if labelled else {}
    expected = "the head for labels of its base" if labelled else "none, for its base has no head for labels"
    raise UsageError(f"{folder / CONFIG}: modules_to_save is {saved!r}; expected is {expected}")


def _module_of(name: str) -> str:
    return name.removeprefix(PREFIX).partition(".lora_")[0]
