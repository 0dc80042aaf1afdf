"""LoRA folders that peft wrote: read as peft reads them, or refused by the name of a key."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from hornbook.errors import HornbookError, IntegrityError, UsageError
from hornbook.model.storage.load import load_model
from hornbook.model.surgery.adapters import reading
from tests.model.surgery.adapters.test_adapter_files import assert_close_to, loaded_by_peft
from tests.model.surgery.conftest import ids, logits, spoil

pytestmark = pytest.mark.filterwarnings(
    "ignore:`is_gradient_checkpointing` is deprecated:FutureWarning", "ignore::UserWarning"
)


def write_lora(folder: Path, base: Path, **options: Any) -> Path:
    """A LoRA with values, as peft saves it."""
    peft, transformers = pytest.importorskip("peft"), pytest.importorskip("transformers")
    plain = transformers.AutoModelForCausalLM.from_pretrained(base, attn_implementation="eager")
    config = peft.LoraConfig(**{"r": 4, "target_modules": ["q_proj", "down_proj"], "task_type": "CAUSAL_LM"} | options)
    spoil(peft.get_peft_model(plain, config)).save_pretrained(folder)
    return folder


def edit(folder: Path, **keys: Any) -> Path:
    path = folder / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | keys))
    return folder


@pytest.mark.parametrize("init", [True, False, "gaussian", "orthogonal", "mica", "eva"])
@torch.no_grad()
def test_first_values_that_leave_the_base_are_read(tmp_path: Path, bases: dict[str, Path], init: Any) -> None:
    folder = edit(write_lora(tmp_path / "adapter", bases["llama"]), init_lora_weights=init)
    found = logits(load_model(folder).model, ids())
    assert_close_to(found, loaded_by_peft(folder, bases["llama"])(input_ids=ids()).logits)


@pytest.mark.parametrize("init", ["pissa", "pissa_niter_4", "olora", "OLoRA"])
@torch.no_grad()
def test_first_values_that_change_the_base_are_refused(tmp_path: Path, bases: dict[str, Path], init: str) -> None:
    folder = edit(write_lora(tmp_path / "adapter", bases["llama"]), init_lora_weights=init)
    theirs = loaded_by_peft(folder, bases["llama"])(input_ids=ids()).logits
    plain = load_model(edit(folder, init_lora_weights=True)).model
    assert not torch.allclose(logits(plain, ids()), theirs, atol=1e-2)  # so it must not be read as that
    with pytest.raises(UsageError, match=rf"init_lora_weights is '{init}': .*merge_and_unload"):
        load_model(edit(folder, init_lora_weights=init))


@pytest.mark.parametrize("init", ["corda", "loftq", "lora_ga", "something new"])
def test_other_first_values_are_refused(tmp_path: Path, bases: dict[str, Path], init: str) -> None:
    folder = edit(write_lora(tmp_path / "adapter", bases["llama"]), init_lora_weights=init)
    with pytest.raises(UsageError, match=f"init_lora_weights is '{init}'"):
        load_model(folder)


@pytest.mark.parametrize(
    "keys",
    [
        {"alora_invocation_tokens": [5, 6]},
        {"rank_pattern": {"q_proj": 2}},
        {"alpha_pattern": {"q_proj": 2}},
        {"layer_replication": [[0, 2], [1, 2]]},
        {"trainable_token_indices": [1]},
        {"target_parameters": ["mlp.experts"]},
        {"kasa_config": {"beta": 1e-4}},
        {"monteclora_config": {"num_samples": 8}},
        {"arrow_config": {"top_k": 1}},
        {"use_bdlora": {"nblocks": 2}},
        {"velora_config": {"num_groups": 2}},
        {"megatron_config": {"a": 1}},
        {"use_qalora": True},
        {"lora_bias": True},
        {"a_field_of_tomorrow": 0},
        {"a_field_of_tomorrow": "on"},
        {"bias": "all"},
    ],
)
def test_keys_that_may_change_the_result_are_refused_by_name(
    tmp_path: Path, bases: dict[str, Path], keys: dict[str, Any]
) -> None:
    folder = edit(write_lora(tmp_path / "adapter", bases["llama"]), **keys)
    with pytest.raises(UsageError, match=rf"adapter_config.json: {next(iter(keys))} "):
        load_model(folder)
    load_model(edit(folder, **{key: "none" if key == "bias" else None for key in keys}))


def test_every_key_of_peft_is_read_or_without_effect_or_refused() -> None:
    peft = pytest.importorskip("peft")
    fields = {field.name: field for field in dataclasses.fields(peft.LoraConfig)}
    given = peft.LoraConfig().to_dict()
    for name in fields.keys() - reading._READ - reading._INERT:
        assert given[name] in (None, False, [], {}), f"{name}: what does peft compute with {given[name]!r}?"


@pytest.mark.parametrize(("key", "value"), [("r", 0), ("r", "4"), ("r", 2.5), ("lora_alpha", None), ("r", True)])
def test_numbers_that_are_none(tmp_path: Path, bases: dict[str, Path], key: str, value: Any) -> None:
    folder = edit(write_lora(tmp_path / "adapter", bases["llama"]), **{key: value})
    with pytest.raises(IntegrityError, match=rf"adapter_config.json: {key} is {value!r}; a number above 0"):
        load_model(folder)


TARGETS = [
    {"layers_to_transform": [0]},
    {"layers_to_transform": 1, "layers_pattern": "layers"},
    {"layers_to_transform": [1], "layers_pattern": ["h", "layers"]},
    {"layers_to_transform": [0, 1]},
    {"layers_to_transform": [0], "layers_pattern": "blocks"},
    {"layers_to_transform": []},
    {"exclude_modules": ["down_proj"]},
    {"exclude_modules": r".*\.1\..*"},
    {"exclude_modules": []},
    {"target_modules": r".*\.(q_proj|down_proj)"},
    {"target_modules": r".*q_proj"},
    {"target_modules": ["proj", "q_proj"]},
    {"target_modules": ["model.layers.0.self_attn.q_proj", "down_proj"]},
    {"target_modules": "all-linear"},
    {"modules_to_save": ["norm"]},
]


@pytest.mark.parametrize("keys", TARGETS)
@torch.no_grad()
def test_only_what_peft_adapts_is_read(tmp_path: Path, bases: dict[str, Path], keys: dict[str, Any]) -> None:
    """The file has both modules of both layers: peft passes over what the keys leave out."""
    folder = edit(write_lora(tmp_path / "adapter", bases["llama"]), **keys)
    problem, found = "", None
    try:
        found = logits(load_model(folder).model, ids())
    except HornbookError as error:
        problem = str(error)
    assert found is not None or any(key in problem for key in keys), problem
    if "modules_to_save" in keys:
        assert "expected is none, for its base has no head" in problem
        return
    try:
        theirs = loaded_by_peft(folder, bases["llama"])
    except ValueError:  # none of the modules is adapted
        assert found is None
        return
    whole = sum("lora_A" in name for name, _ in theirs.named_parameters()) >= 4
    assert (found is not None) == whole
    if found is not None:
        assert_close_to(found, theirs(input_ids=ids()).logits)
