"""Every small recipe really trains: on real text it ends below the unigram entropy, and its export is certified."""

import json
from pathlib import Path

import numpy as np
import pytest

from hornbook.cli.main import main
from hornbook.data.corpus import Corpus
from hornbook.errors import Exit
from hornbook.settings.recipe_files import shipped_recipes
from hornbook.text.ingest.corpora.installed import write_installed_corpus
from hornbook.text.ingest.corpora.installed_labels import write_passages

LABELLED = "tiny-classify"
RECIPES = [name for name in shipped_recipes() if name.startswith("tiny-") and name != LABELLED]
BYTES = 4_000_000


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Docstrings and code of the standard library."""
    folder = tmp_path_factory.mktemp("raw")
    write_installed_corpus(folder, max_bytes=BYTES, seed=0)
    return folder


def unigram_nats(corpus: Corpus) -> float:
    """Entropy of the tokens of the training text, in nats per token."""
    counts = np.zeros(corpus.vocab_size, np.int64)
    for stream in corpus.train.values():
        for shard in stream.shards:
            counts += np.bincount(shard.data, minlength=corpus.vocab_size)
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log(shares)).sum())


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", RECIPES)
def test_it_learns_and_exports(name: str, raw: Path, tmp_path: Path) -> None:
    data, run = tmp_path / "data", tmp_path / "run"
    assert main(["prepare", name, str(raw / "docstrings.jsonl"), "--out", str(data)]) == Exit.DONE
    assert main(["tokenize", str(data)]) == Exit.DONE
    assert main(["train", name, "--data", str(data), "--out", str(run)]) == Exit.DONE
    newest = max((run / "evals").glob("step-*.json"))
    loss = json.loads(newest.read_text())["all"]["loss"]
    assert loss < unigram_nats(Corpus.open(data)), f"{name}: {loss}"
    assert main(["export", str(run), "--to", "hf", "--out", str(tmp_path / "exported")]) == Exit.DONE
    assert json.loads((tmp_path / "exported" / "certificate.json").read_text())["ok"]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_labels_are_learned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    passages, data, run = write_passages(tmp_path), tmp_path / "data", tmp_path / "run"
    assert main(["prepare", LABELLED, str(passages), "--out", str(data)]) == Exit.DONE
    assert main(["tokenize", str(data)]) == Exit.DONE
    assert main(["train", LABELLED, "--data", str(data), "--out", str(run)]) == Exit.DONE
    capsys.readouterr()
    assert main(["eval", str(run), "--json"]) == Exit.DONE
    figures = json.loads(capsys.readouterr().out)
    corpus = Corpus.open(data)
    labels = [shard.labels for stream in corpus.validation.values() for shard in stream.shards]
    held_out = np.concatenate([each[~np.isnan(each)] for each in labels if each is not None])
    majority = float(np.bincount(held_out.astype(int)).max() / len(held_out))
    assert figures["labels"] == len(held_out)
    assert figures["accuracy"] > majority + 0.05, (figures, majority)
    assert figures["mcc"] > 0.6
