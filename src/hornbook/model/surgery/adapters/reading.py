"""Adapter folders read: ours, and LoRA folders that peft wrote."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from hornbook.errors import IntegrityError, UsageError
from hornbook.files.json_files import read_json
from hornbook.files.safetensors import read_header
from hornbook.model.config import surgery_config as surgery
from hornbook.model.config.head_config import LabelHeadConfig
from hornbook.model.config.model_config import ModelConfig
from hornbook.model.hf.hf_config import choose_architecture
from hornbook.model.hf.hf_layout import lay_out
from hornbook.model.storage.safetensors_folder import Reader, mismatches, named, refuse_mismatches
from hornbook.model.surgery.adapters.adapter_files import CONFIG, WEIGHTS, AdapterSpec, placements, read_meta
from hornbook.model.surgery.adapters.lora_layout import (
    PREFIX,
    Placement,
    head_placements,
    layer_of,
    lora_placements,
    their_module,
)

_READ = {
    *("peft_type", "r", "lora_alpha", "use_dora", "use_rslora", "init_lora_weights", "bias", "modules_to_save"),
    *("target_modules", "exclude_modules", "layers_to_transform", "layers_pattern"),
}
"""Keys of peft's LoraConfig that are read."""
_INERT = {
    *("auto_mapping", "base_model_name_or_path", "revision", "task_type", "inference_mode", "peft_version"),
    *("lora_dropout", "fan_in_fan_out", "megatron_core", "qalora_group_size", "ensure_weight_tying", "runtime_config"),
    *("corda_config", "eva_config", "loftq_config", "lora_ga_config"),
}
"""Keys that do not change what a stored adapter computes: of training, of first values, of files."""
_INITS = ("true", "false", "none", "gaussian", "eva", "orthogonal", "mica")
"""First values for which peft leaves the base as it is; others (PiSSA, OLoRA ...) are subtracted from its weights."""


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
    _refuse_unread(folder / CONFIG, keys)
    modules, layout = [], lay_out(config, vocab, choose_architecture(config))
    head = _saved_head(folder, keys, config, vocab)
    whole = {placement.theirs for placement in head.values()}
    for module in sorted({_module_of(name) for name in read_header(folder / WEIGHTS) if name not in whole}):
        if f"{module}.weight" not in layout:
            raise IntegrityError(f"{folder}: {module} is no layer of its base, which has {named(layout, 3)}")
        if not _is_targeted(module, keys, is_head=layout[f"{module}.weight"][0].name.startswith("head.")):
            raise UsageError(
                f"{folder / CONFIG}: {WEIGHTS} holds {module}, which target_modules, exclude_modules, "
                "layers_to_transform or modules_to_save leaves out, so peft ignores it: correct these keys"
            )
        modules.append(their_module(f"{module}.weight", layout[f"{module}.weight"]))
    targets = [layer_of(part) for module in modules for part in module.parts]
    kind = surgery.Dora if keys.get("use_dora") else surgery.Lora
    scaling = "root_rank" if keys.get("use_rslora") else "rank"
    step = kind(targets=targets, rank=keys.get("r", 8), alpha=keys.get("lora_alpha", 8), scaling=scaling)
    return step, lora_placements(modules, step, shared=True) | head


def _refuse_unread(file: Path, keys: Mapping[str, Any]) -> None:
    """UsageError for a key that may change what the adapter computes; IntegrityError for numbers that are none."""
    for key, kinds in {"r": int, "lora_alpha": int | float}.items():
        if isinstance(number := keys.get(key, 8), bool) or not isinstance(number, kinds) or number <= 0:
            raise IntegrityError(f"{file}: {key} is {number!r}; a number above 0 is expected")
    elsewhere = (
        "; with peft, PeftModel.from_pretrained(base, adapter).merge_and_unload() merges most kinds of adapters: save "
        "that model, and import it"
    )
    if str(init := keys.get("init_lora_weights", True)).lower() not in _INITS:
        raise UsageError(
            f"{file}: init_lora_weights is {init!r}: its adapter belongs to a base changed by its first values, not to "
            f"the base as stored{elsewhere}"
        )
    if keys.get("bias", "none") != "none":
        raise UsageError(f"{file}: bias is {keys['bias']!r}; only 'none' is read{elsewhere}")
    for key in keys.keys() - _READ - _INERT:
        if (value := keys[key]) is not None and value is not False and value not in ([], {}):
            raise UsageError(
                f"{file}: {key} = {value!r} is not read, and may change what the adapter computes; LoRA, rsLoRA and "
                f"DoRA with one rank are read{elsewhere}"
            )


def _is_targeted(module: str, keys: Mapping[str, Any], *, is_head: bool) -> bool:
    """Whether peft adapts a module, by its rules (`peft.tuners.tuners_utils.check_target_module_exists`)."""
    targets, layers = keys.get("target_modules"), keys.get("layers_to_transform")
    saved = (name for name in keys.get("modules_to_save") or () if f".{name}." in f".{module}.")
    if _names(keys.get("exclude_modules"), module) or any(saved):
        return False
    if isinstance(targets, str) or module in (targets or ()) or layers is None or layers == []:
        return not is_head if targets == "all-linear" else _names(targets, module)
    patterns = keys.get("layers_pattern") or r"[^.]*"
    for pattern in [patterns] if isinstance(patterns, str) else patterns:
        if layer := re.match(rf"(?:^|.*?\.){pattern}\.(\d+)\.", module):
            chosen = layers if isinstance(layers, list) else [layers]
            return int(layer[1]) in chosen and _names(targets, module)
    return False


def _names(given: Any, module: str) -> bool:
    """Whether a regular expression, or a list of ends of names, is of the module."""
    if isinstance(given, str):
        return re.fullmatch(given, module) is not None
    return any(f".{module}".endswith(f".{name}") for name in given or ())


def _saved_head(folder: Path, keys: Mapping[str, Any], config: ModelConfig, vocab: int) -> dict[str, Placement]:
    """Where the head for labels lies that was trained whole."""
    saved, labelled = keys.get("modules_to_save") or [], isinstance(config.head, LabelHeadConfig)
    if labelled == bool(saved):
        return head_placements(config, vocab) if labelled else {}
    expected = "the head for labels of its base" if labelled else "none, for its base has no head for labels"
    raise UsageError(f"{folder / CONFIG}: modules_to_save is {saved!r}; expected is {expected}")


def _module_of(name: str) -> str:
    return name.removeprefix(PREFIX).partition(".lora_")[0]
