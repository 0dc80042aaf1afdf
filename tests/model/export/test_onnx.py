"""ONNX files: attention by symbols is ours, what is refused, and what onnxruntime computes."""

import importlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from hornbook.cli.main import main
from hornbook.errors import Exit, UsageError
from hornbook.model.attention.mask import AttentionMask
from hornbook.model.attention.tiled_attention import Scoring
from hornbook.model.config.attention_config import FullAttentionConfig, LatentAttentionConfig
from hornbook.model.config.head_config import ClassificationHead, SpanHead
from hornbook.model.config.mlp_config import ExpertsConfig
from hornbook.model.config.model_config import LayerConfig, ModelConfig
from hornbook.model.config.position_config import AlibiConfig, NoPositions, RopeConfig
from hornbook.model.export import onnx
from hornbook.model.hf.hf import write_hf
from tests.model.attention.reference import reference_attention
from tests.model.likenesses import bert_like, gpt2_like

VOCAB = 90
SHAPE = {"layers": 2, "width": 32, "heads": 4, "position": RopeConfig(length=40)}


@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("sinks", [False, True])
def test_attention_by_symbols_is_the_formula(window: int | None, softcap: float | None, sinks: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(2, heads, 9, 6, generator=generator) for heads in (4, 2, 2))
    extra = torch.randn(4, generator=generator) if sinks else None
    mask = AttentionMask(window=window)
    expected = reference_attention(query, key, value, mask, Scoring(0.3, softcap, None, extra, None))
    found = onnx.attend_by_symbols(query, key, value, mask, scale=0.3, softcap=softcap, sinks=extra)
    assert float((found - expected).abs().max()) < 1e-6


REFUSED = {
    "kind 'encoder_decoder'": ModelConfig(**SHAPE, kind="encoder_decoder"),
    "attention of a kind other than full": ModelConfig(**SHAPE, attention=LatentAttentionConfig()),
    "experts": ModelConfig(**SHAPE, mlp=ExpertsConfig(count=2, active=1, hidden=8)),
    "positions of kind 'alibi'": ModelConfig(**SHAPE | {"position": AlibiConfig(length=40)}),
}


@pytest.mark.parametrize("window", [None, 4])
def test_padding_is_seen_by_no_text(window: int | None) -> None:
    """A row of 5 and one of 3 tokens, as each is alone."""
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(2, heads, 5, 6, generator=generator) for heads in (4, 2, 2))
    mask, sizes = AttentionMask("bidirectional", window=window), (5, 3)
    seen = torch.tensor([[1] * size + [0] * (5 - size) for size in sizes])
    found = onnx.attend_by_symbols(query, key, value, mask, seen=seen)
    assert found.isfinite().all()
    for row, size in enumerate(sizes):
        alone = (each[row : row + 1, :, :size] for each in (query, key, value))
        expected = reference_attention(*alone, mask, Scoring(6**-0.5, None, None, None, None))
        assert float((found[row, :, :size] - expected[0]).abs().max()) < 1e-6


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_not_written_is_refused_by_name(what: str) -> None:
    with pytest.raises(UsageError, match=what):
        onnx.require_onnx(REFUSED[what])


LAYERS = [LayerConfig(), LayerConfig(position=NoPositions()), LayerConfig(attention=FullAttentionConfig(window=3))]


def test_layers_are_judged_by_what_they_have() -> None:
    onnx.require_onnx(ModelConfig(**SHAPE, pattern=LAYERS))
    with pytest.raises(UsageError, match="attention of a kind other than full"):
        onnx.require_onnx(ModelConfig(**SHAPE, first=[LayerConfig(attention=LatentAttentionConfig())]))


def _ask_as_others_do(folder: Path, config: ModelConfig, session: Any) -> None:
    """The folder as transformers.js reads it: what the tokenizer gives is what the file takes."""
    keys = json.loads((folder / "config.json").read_text())
    labels = getattr(config.head, "labels", None)
    assert [keys["id2label"][str(number)] for number in range(len(labels))] == labels if labels else True
    tokenizer = importlib.import_module("transformers").AutoTokenizer.from_pretrained(folder)
    asked = dict(tokenizer(["one text"], return_tensors="np"))
    names = {each.name for each in session.get_inputs()}
    assert names <= asked.keys()
    (logits,) = session.run(["logits"], {name: asked[name] for name in names})
    rows, time = asked["input_ids"].shape
    judges = config.kind == "encoder" and isinstance(config.head, ClassificationHead)
    assert logits.shape[:-1] == ((rows,) if judges else (rows, time))


@pytest.mark.slow
@pytest.mark.parametrize(
    "config",
    [
        ModelConfig(**SHAPE | {"layers": 3}, pattern=LAYERS),
        bert_like(length=40),
        bert_like(length=40).model_copy(update={"head": ClassificationHead(labels=["bad", "good"])}),
        ModelConfig(**SHAPE, head=ClassificationHead(labels=["bad", "good"])),
        ModelConfig(**SHAPE, kind="encoder", attention=FullAttentionConfig(window=6), head=SpanHead()),
        gpt2_like(length=40),
        ModelConfig(**SHAPE, attention=FullAttentionConfig(kv_heads=2, window=5, softcap=9.0, sinks=True)),
    ],
    ids=["layers", "encoder", "classifier", "decoder with labels", "spans", "gpt2", "window"],
)
def test_onnxruntime_computes_the_same(
    config: ModelConfig, tmp_path: Path, random_model: Any, tokenizer_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("onnxscript", "onnxruntime"):
        pytest.importorskip(name)
    vocab = 320
    write_hf(tmp_path / "model", random_model(config, vocab, 2), config, vocab, tokenizer_folder)
    words = ["export", str(tmp_path / "model"), "--to", "onnx", "--out"]
    assert main([*words, str(tmp_path / "out")]) == Exit.DONE
    certificate = json.loads((tmp_path / "out" / "certificate.json").read_text())
    assert certificate["ok"]
    padding = sum(sum(range(batch)) for batch, _ in onnx.SHAPES) if config.kind == "encoder" else 0
    assert certificate["tokens"] == sum(batch * time for batch, time in onnx.SHAPES) - padding
    session = importlib.import_module("onnxruntime").InferenceSession(str(tmp_path / "out" / onnx.FILE))
    assert [each.name for each in session.get_inputs()] == onnx.input_names(config)
    _ask_as_others_do(tmp_path / "out", config, session)
    real = onnx.attend_by_symbols
    monkeypatch.setattr(onnx, "attend_by_symbols", lambda *given, **more: 1.01 * real(*given, **more))
    assert main([*words, str(tmp_path / "wrong")]) == Exit.INTEGRITY
    assert not (tmp_path / "wrong").exists()
    assert main([*words, str(tmp_path / "no"), "--dtype", "q8_0"]) == Exit.USAGE
