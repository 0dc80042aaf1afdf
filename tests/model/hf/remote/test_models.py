"""The modelling file: every part that a model may have, loaded by transformers from the folder alone."""

import ast
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from hornbook.model.build_model import build_model
from hornbook.model.config.model_config import ModelConfig
from hornbook.model.heads.label_answers import text_place
from hornbook.model.hf.certificate import certify
from hornbook.model.hf.hf import write_hf
from hornbook.model.hf.hf_config import choose_architecture, from_json
from hornbook.model.hf.remote import source
from hornbook.model.init.init import initialize
from hornbook.model.storage.load import load_model
from hornbook.model.transformer import Source, Transformer
from tests.model.surgery.conftest import spoil

pytestmark = pytest.mark.filterwarnings("default::DeprecationWarning", "ignore::UserWarning")
VOCAB, SIZES = 60, {"layers": 3, "width": 24, "heads": 4, "mlp": {"kind": "glu", "hidden": 20}}
ROPE = {"kind": "rope", "length": 64}
YARN = {"kind": "yarn", "factor": 4.0, "original": 16}
EXPERTS = {"kind": "experts", "count": 4, "hidden": 12, "active": 2}
LATENT = {"kind": "latent", "query_rank": 10, "kv_rank": 8, "nope_dim": 6, "rope_dim": 4, "value_dim": 5}
LEARNED = {"kind": "learned", "length": 64, "offset": 2}
WINDOWS = [{}, {"attention": {"kind": "full", "window": 7}}, {"position": {"kind": "none"}}]
ENCODER = {"kind": "encoder", "head": {"kind": "masked"}, "position": LEARNED, "norm": {"kind": "layer"}}
PRE_NORM = {"embedding": {"norm": True, "types": 2}}
MODELS: dict[str, dict[str, Any]] = {
    "alibi": {"position": {"kind": "alibi"}, "heads": 6},
    "relative": {"position": {"kind": "relative", "buckets": 8, "max_distance": 12}},
    "sines": {"position": {"kind": "sinusoidal", "length": 64}},
    "no positions": {"position": {"kind": "none"}},
    "ntk": {"position": ROPE | {"scaling": {"kind": "ntk", "factor": 2.0}, "layout": "interleaved"}},
    "linear": {"position": ROPE | {"scaling": {"kind": "linear", "factor": 2.0}, "fraction": 0.67}},
    "llama3": {
        "position": ROPE | {"scaling": {"kind": "llama3", "factor": 8.0, "original": 16}, "layout": "interleaved"}
    },
    "windows": {"pattern": WINDOWS, "norm": {"kind": "layer", "bias": False}},
    "first": {"first": [{"attention_norm": {"kind": "none"}, "mlp": {"kind": "mlp", "activation": "relu2"}}]},
    "queries": {
        "attention": {"kind": "full", "kv_heads": 2, "qk_norm": "head", "softcap": 3.0, "sinks": True, "clip": 0.5},
        "position": ROPE | {"scaling": YARN},
    },
    "whole queries": {
        "attention": {"kind": "full", "qk_norm": "full", "scale": 0.3, "bias": True, "out_bias": True, "head_dim": 8},
        "block": {"kind": "output"},
        "norm": {"kind": "rms_offset"},
    },
    "sandwich": {"block": {"kind": "sandwich"}, "head": {"kind": "lm", "tied": False, "bias": True, "softcap": 2.0}},
    "parallel": {"block": {"kind": "parallel"}, "mlp": {"kind": "mlp", "activation": "silu"}},
    "shared norm": {"block": {"kind": "parallel", "shared_norm": True}, "embedding": {"scale": 3.0, "norm": True}},
    "branches": {"block": {"kind": "pre", "multiplier": 0.5}, "head": {"kind": "lm", "scale": 0.25}},
    "no norms": {"norm": {"kind": "none"}, "mlp": {"kind": "mlp", "activation": "relu"}},
    "narrow": {"embedding": {"width": 10}, "position": {"kind": "alibi"}},
    "latent": {"attention": LATENT, "position": ROPE | {"scaling": YARN | {"mscale": 1.0, "mscale_all_dim": 0.7}}},
    "latent queries": {"attention": LATENT | {"query_rank": None, "bias": True}},
    "delta": {"pattern": [{"attention": {"kind": "delta", "key_heads": 2}}, {}, {"attention": {"kind": "delta"}}]},
    "switch": {"mlp": EXPERTS | {"active": 1, "router": {"kind": "switch"}, "shared_hidden": 8}},
    "sigmoid": {
        "mlp": EXPERTS
        | {"router": {"kind": "sigmoid", "groups": 2, "groups_active": 1, "scale": 2.0}, "activation": "gelu"}
    },
    "softmax": {"mlp": EXPERTS | {"router": {"kind": "softmax", "renormalize": False}}},
    "labelled decoder": {"head": {"kind": "classification", "labels": ["a", "b"]}, "position": {"kind": "alibi"}},
    "masked": ENCODER | PRE_NORM,
    "masked both ways": ENCODER | {"attention": {"kind": "full", "window": 6}, "position": {"kind": "alibi"}},
    "masked buckets": ENCODER | {"position": {"kind": "relative", "buckets": 8, "max_distance": 12}},
    "tags by batch": ENCODER
    | {"norm": {"kind": "batch"}, "head": {"kind": "token_classification", "labels": ["a", "b"]}},
    "masked narrow": ENCODER | {"embedding": {"width": 10, "projected": "last", "bias": True}},
    "labelled": ENCODER
    | PRE_NORM
    | {"head": {"kind": "classification", "labels": ["a", "b"], "transform": {"kind": "dense", "norm": True}}},
    "numbers": ENCODER | PRE_NORM | {"head": {"kind": "regression", "outputs": 2}},
    "tags": ENCODER | PRE_NORM | {"head": {"kind": "token_classification", "labels": ["a", "b", "c"]}},
    "span": ENCODER | PRE_NORM | {"head": {"kind": "span"}},
    "replaced": ENCODER | PRE_NORM | {"head": {"kind": "replaced", "generator": {"kind": "none"}}},
    "pairs": {"kind": "encoder_decoder", "encoder_layers": 2, "head": {"kind": "lm", "tied": True, "bias": True}},
    "pairs by distance": {
        "kind": "encoder_decoder",
        "block": {"kind": "post"},
        "position": {"kind": "relative", "buckets": 8, "max_distance": 12},
    },
}


def written(folder: Path, name: str) -> tuple[ModelConfig, Transformer]:
    config = ModelConfig.model_validate(SIZES | MODELS[name])
    model = build_model(config, VOCAB, "cpu")
    initialize(model, config, 1)
    write_hf(folder, spoil(model.eval()), config, VOCAB, None)
    return config, model


def loaded(folder: Path, monkeypatch: pytest.MonkeyPatch, **options: Any) -> Any:
    """By the classes that auto_map names, from a cache of modules of its own."""
    dynamic = pytest.importorskip("transformers.dynamic_module_utils")
    monkeypatch.setattr(dynamic, "HF_MODULES_CACHE", str(folder.parent / "modules"))
    monkeypatch.setattr(sys, "path", [*sys.path])
    import transformers

    keys = json.loads((folder / "config.json").read_text())
    auto = next(key for key in keys["auto_map"] if key not in ("AutoConfig", "AutoModel"))
    model = getattr(transformers, auto).from_pretrained(folder, trust_remote_code=True, **options)
    model.config.pad_token_id = -1
    return model.eval()


def ids(time: int = 24, seed: int = 3) -> torch.Tensor:
    return torch.randint(0, VOCAB, (2, time), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_transformers_computes_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    config, model = written(tmp_path / "model", name)
    assert choose_architecture(config) is None, "a class of transformers has it: this shows nothing"
    theirs, source_ids = loaded(tmp_path / "model", monkeypatch), ids(11, seed=4)
    assert type(theirs).__module__.startswith("transformers_modules.")
    both = config.kind == "encoder_decoder"
    hidden, _ = model(ids(), source=Source(source_ids) if both else None)
    assert model.head is not None
    expected = model.head.logits(hidden)
    found = theirs(source_ids, decoder_input_ids=ids()) if both else theirs(ids())
    logits = torch.stack([found.start_logits, found.end_logits], -1) if name == "span" else found.logits
    logits = logits[..., None] if name == "replaced" else logits
    expected = expected if logits.dim() == 3 else expected[:, text_place(config.kind)]
    torch.testing.assert_close(logits, expected, atol=2e-5 * float(expected.abs().max()), rtol=0)
    again, vocab = from_json(json.loads((tmp_path / "model" / "config.json").read_text()))
    assert (again, vocab) == (config, VOCAB)


@pytest.mark.parametrize("name", ["alibi", "delta", "windows", "queries", "sines", "labelled decoder", "masked"])
@torch.no_grad()
def test_padding_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Before a text of a decoder, behind one of an encoder."""
    config, _ = written(tmp_path / "model", name)
    theirs, text, padding = loaded(tmp_path / "model", monkeypatch), ids()[:1, :9], torch.zeros(1, 5, dtype=torch.long)
    ahead = config.kind == "decoder"
    rows = [padding, text] if ahead else [text, padding]
    masks = [torch.ones_like(each) if each is text else each for each in rows]
    alone, padded = theirs(text).logits, theirs(torch.cat(rows, 1), attention_mask=torch.cat(masks, 1)).logits
    if alone.dim() == 3:
        padded = padded[:, 5:] if ahead else padded[:, :9]
    torch.testing.assert_close(padded, alone, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ["delta", "pairs"])
@torch.no_grad()
def test_it_generates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    written(tmp_path / "model", name)
    theirs, prompt = loaded(tmp_path / "model", monkeypatch), ids(6).clamp(min=1)
    start = {"decoder_start_token_id": 0} if name == "pairs" else {}
    found = theirs.generate(prompt, max_new_tokens=4, do_sample=False, pad_token_id=0, **start)
    given = prompt if name == "delta" else torch.zeros(2, 1, dtype=torch.long)
    for _ in range(4):
        logits = theirs(given).logits if name == "delta" else theirs(prompt, decoder_input_ids=given).logits
        given = torch.cat([given, logits[:, -1:].argmax(-1)], 1)
    assert torch.equal(found, given)


def test_hidden_states_come_without_the_head(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    transformers = pytest.importorskip("transformers")
    _, model = written(tmp_path / "model", "masked")
    loaded(tmp_path / "model", monkeypatch)
    theirs = transformers.AutoModel.from_pretrained(tmp_path / "model", trust_remote_code=True).eval()
    with torch.no_grad():
        torch.testing.assert_close(theirs(ids()).last_hidden_state, model(ids())[0], atol=1e-4, rtol=1e-4)


def test_the_certificate_asks_the_file_that_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By our own class: a file of a folder may be anybody's, and is not run."""
    written(tmp_path / "model", "delta")
    (tmp_path / "model" / source.FILE).write_text("raise SystemExit('run')\n")
    found = certify(tmp_path / "model")
    assert found.ok
    assert found.compared_with
    assert "HornbookForCausalLM" in found.summary()
    from hornbook.model.hf.remote import layers

    monkeypatch.setattr(layers.Delta, "forward", lambda self, x, _: self.out(self.value(x)))
    assert not certify(tmp_path / "model").ok


def test_the_file_imports_torch_and_transformers_alone(tmp_path: Path) -> None:
    _, _ = written(tmp_path / "model", "delta")
    text = (tmp_path / "model" / source.FILE).read_text()
    assert text == source.source()
    imported = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            imported |= {name.name.partition(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            imported.add(str(node.module).partition(".")[0])
    assert imported == {"math", "typing", "torch", "transformers"}


def test_a_model_with_a_class_and_one_in_training_have_no_file(tmp_path: Path) -> None:
    for number, keys in enumerate(({}, {"mtp": {"kind": "sequential"}, "position": {"kind": "alibi"}})):
        config = ModelConfig.model_validate(SIZES | keys)
        model = build_model(config, VOCAB, "cpu")
        initialize(model, config, 1)
        write_hf(tmp_path / str(number), model, config, VOCAB, None)
        assert not (tmp_path / str(number) / source.FILE).exists()
        assert "auto_map" not in json.loads((tmp_path / str(number) / "config.json").read_text())


def test_folders_written_before_the_file_are_read(tmp_path: Path) -> None:
    _, model = written(tmp_path / "model", "masked")
    path = tmp_path / "model" / "config.json"
    keys = json.loads(path.read_text())
    old = {key: keys[key] for key in ("model_type", "vocab_size", "dtype", "hornbook")}
    path.write_text(json.dumps(old | {"architectures": ["HornbookForCausalLM"]}))
    (tmp_path / "model" / source.FILE).unlink()
    with torch.no_grad():
        assert torch.equal(load_model(tmp_path / "model").model(ids())[0], model(ids())[0])
