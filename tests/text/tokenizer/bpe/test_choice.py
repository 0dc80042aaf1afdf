"""The tokenizers library and our kernels write the same files, whoever is chosen."""

import json
from pathlib import Path

import pytest

from hornbook.text.config.text import TextConfig
from hornbook.text.refinery.pipeline.prepare import prepare
from hornbook.text.tokenizer import tokenizer as tokenizer_module
from hornbook.text.tokenizer.bpe import choice as bpe_choice
from hornbook.text.tokenizer.bpe import train as bpe_train
from hornbook.text.tokenizer.tokenize import tokenize

TEXTS = [
    "It's 12345 words, and wordlike ones: don't\n\n\tif x:  return  y\n",
    "\u00e4\u00f6 \u6f22\u5b57 \U0001f600 ca\u00f1on",
] * 40


def write(folder: Path, monkeypatch: pytest.MonkeyPatch, compiled: bool) -> dict[str, bytes]:
    """Every file of a small folder, tokenized by the kernels or by the library."""
    monkeypatch.setattr(bpe_train, "training_is_compiled", lambda: compiled)
    monkeypatch.setattr(bpe_choice, "encoding_is_compiled", lambda: compiled)
    source = folder.parent / "texts.jsonl"
    rows = [{"text": f"{number} {text}" * (number % 7 + 1)} for number, text in enumerate(TEXTS)]
    source.write_text("\n".join(map(json.dumps, rows)))
    settings = {"kind": "bpe", "vocab": 400}
    config = TextConfig.model_validate(
        {"sources": {"s": {"paths": [str(source)]}}, "tokenizer": settings, "validation": 0.2}
    )
    prepare(config, folder, workers=1)
    tokenizer_module._made.cache_clear()  # one read before has made its choice
    from hornbook.text.tokenizer.encode import _load

    _load.cache_clear()
    tokenize(folder, config, workers=1)
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for part in ("tokenizer", "tokens")
        for path in sorted((folder / part).rglob("*"))
        if path.is_file()
    }


def test_small_folders_are_the_same_by_the_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    by_library = write(tmp_path / "library", monkeypatch, compiled=False)
    by_kernels = write(tmp_path / "kernels", monkeypatch, compiled=True)
    assert by_library == by_kernels
    assert any(name.endswith(".bin") for name in by_library)


def test_kernels_are_compiled_for_large_folders_only(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(bpe_choice, "training_is_compiled", lambda: False)
    monkeypatch.setattr(bpe_choice, "encoding_is_compiled", lambda: False)
    assert bpe_choice.jobs_for(bpe_choice.LEAST_BYTES - 1) == []
    assert bpe_choice.jobs_for(bpe_choice.LEAST_BYTES) == [bpe_choice._encode, bpe_choice._learn]


def test_the_jobs_compile_what_is_asked_for():
    for job in (bpe_choice._encode, bpe_choice._learn):
        job()
    assert bpe_choice.encoding_is_compiled()
    assert bpe_choice.training_is_compiled()
