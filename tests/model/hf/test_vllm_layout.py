"""Exported folders by the rules of vLLM's loader, written out here: vLLM itself is not run.

They were read in `vllm/model_executor/models/`, each file at one commit: the table of text models of registry.py
(0002bff0), modules and `load_weights` of llama.py (0035bdf2), qwen2.py (013a2792) and qwen3.py (002456df). config.json
names a class of the table; each tensor of the file is put into the parameter of its name, where query, key and value
are rows of one matrix and gate and up of another; hidden_act is "silu". A bias without a parameter is passed over
there, any other tensor without one is a KeyError, and a parameter without a tensor is not filled: all are errors here.
"""

import json
import re
import struct
from pathlib import Path
from typing import Any

import pytest

from hornbook.model.build_model import build_model
from hornbook.model.config.attention_config import FullAttentionConfig
from hornbook.model.config.head_config import LMHead
from hornbook.model.config.model_config import ModelConfig
from hornbook.model.config.position_config import RopeConfig
from hornbook.model.hf.hf import write_hf
from hornbook.model.init.init import initialize
from tests.conftest import write_tokenizer

STACKED = {"q_proj": "qkv_proj", "k_proj": "qkv_proj", "v_proj": "qkv_proj", "gate_proj": "gate_up_proj"}
STACKED |= {"up_proj": "gate_up_proj"}
SHAPE: dict[str, Any] = {"layers": 2, "width": 32, "heads": 4, "position": RopeConfig(length=64)}
KINDS: dict[str, FullAttentionConfig] = {
    "LlamaForCausalLM": FullAttentionConfig(kv_heads=2),
    "Qwen2ForCausalLM": FullAttentionConfig(kv_heads=2, bias=True),
    "Qwen3ForCausalLM": FullAttentionConfig(kv_heads=2, qk_norm="head"),
}


def parameters(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Names and shapes of vLLM's parameters on one device."""
    kind, width = config["architectures"][0], config["hidden_size"]
    heads, groups = config["num_attention_heads"], config["num_key_value_heads"]
    dim = config.get("head_dim") or width // heads
    found: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config["vocab_size"], width)}
    found["model.norm.weight"] = (width,)
    if not config["tie_word_embeddings"]:
        found["lm_head.weight"] = (config["vocab_size"], width)
    for layer in range(config["num_hidden_layers"]):
        attention, mlp = f"model.layers.{layer}.self_attn", f"model.layers.{layer}.mlp"
        found[f"{attention}.qkv_proj.weight"] = ((heads + 2 * groups) * dim, width)
        found[f"{attention}.o_proj.weight"] = (width, heads * dim)
        found[f"{mlp}.gate_up_proj.weight"] = (2 * config["intermediate_size"], width)
        found[f"{mlp}.down_proj.weight"] = (width, config["intermediate_size"])
        for norm in ("input_layernorm", "post_attention_layernorm"):
            found[f"model.layers.{layer}.{norm}.weight"] = (width,)
        if kind == "Qwen2ForCausalLM":
            found[f"{attention}.qkv_proj.bias"] = ((heads + 2 * groups) * dim,)
        if kind == "Qwen3ForCausalLM":
            found |= {f"{attention}.{part}_norm.weight": (dim,) for part in "qk"}
    return found


def loaded(file: Path) -> dict[str, tuple[int, ...]]:
    """What the tensors of a file fill: rows of stacked matrices add up."""
    data = file.read_bytes()
    header = json.loads(data[8 : 8 + struct.unpack("<Q", data[:8])[0]])
    found: dict[str, tuple[int, ...]] = {}
    for name, tensor in header.items():
        if name == "__metadata__":
            continue
        target = re.sub(r"\b(q|k|v|gate|up)_proj\b", lambda part: STACKED[part[0]], name)
        rows, *others = tensor["shape"]
        before, *same = found.get(target, (0, *others))
        assert same == others, name
        found[target] = (before + rows, *others)
    return found


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_every_tensor_has_its_place_and_every_place_its_tensor(tmp_path: Path, kind: str, tied: bool) -> None:
    config = ModelConfig(**SHAPE, attention=KINDS[kind], head=LMHead(tied=tied))
    model = build_model(config, 320, "cpu")
    initialize(model, config, seed=1)
    write_tokenizer(tmp_path / "tokenizer")
    write_hf(tmp_path / "out", model, config, 320, tmp_path / "tokenizer")
    told = json.loads((tmp_path / "out/config.json").read_text())
    assert (told["architectures"], told["hidden_act"]) == ([kind], "silu")
    assert loaded(tmp_path / "out/model.safetensors") == parameters(told)
    assert {"tokenizer.json", "tokenizer_config.json"} <= {each.name for each in (tmp_path / "out").iterdir()}
