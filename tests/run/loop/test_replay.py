"""Replay: text of an earlier training beside the new, by its share, evaluated by itself, bound to the run."""

import json
from pathlib import Path

import pytest

from hornbook.cli.main import main
from hornbook.data.config.data import DataConfig, ReplayConfig, StageConfig
from hornbook.data.corpus import Corpus, open_corpus
from hornbook.data.loader.global_index import GlobalIndex
from hornbook.data.order.mixture import build_stages
from hornbook.errors import Exit, UsageError
from tests.conftest import write_corpus


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("old") / "data", seed=7)


def test_the_share_is_that_of_the_old_text_in_every_stage() -> None:
    sizes = {"a": 300, "b": 100, "replay-x": 50, "replay-y": 150}
    stages = [StageConfig(from_tokens=100, weights={"b": 1.0})]
    config = DataConfig(replay=ReplayConfig(share=0.2), stages=stages)
    names, (first, second), _ = build_stages(config, sizes, 10, {"replay-x", "replay-y"})
    assert names == ["a", "b", "replay-x", "replay-y"]
    assert first.weights == pytest.approx((0.6, 0.2, 0.05, 0.15))
    assert second.weights == pytest.approx((0, 0.8, 0.05, 0.15))
    assert build_stages(config.model_copy(update={"replay": ReplayConfig(share=0)}), sizes, 10, {"replay-x"})[0][
        :2
    ] == ["a", "b"]


def test_rows_of_both_folders_are_read(tiny_corpus: Path, old: Path) -> None:
    config = DataConfig(replay=ReplayConfig(path=str(old), share=0.25))
    corpus = open_corpus(config, tiny_corpus)
    assert list(corpus.validation) == ["notes", "prose", "replay-notes", "replay-prose"]
    index = GlobalIndex(corpus, config, sequence=32, seed=1)
    epochs = index.epochs(32 * 400)
    read = sum(epochs[name] * index.source_tokens[name] for name in index.sources if name in corpus.replayed)
    assert read == pytest.approx(0.25 * 32 * 400, rel=0.02)
    replayed = next(n for n in range(100) if index.documents(n)[0].source == "replay-prose")
    there = Corpus.open(old).train["prose"].shards[0]
    document = index.documents(replayed)[0]
    assert there.document(document.document)["id"] == document.id
    lock = corpus.lock()["shards"]
    assert len(lock) == 8, "shards of equal names are told apart"


def test_a_run_evaluates_both_and_is_verified(
    tmp_path: Path, tiny_settings: tuple[str, ...], old: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    words = ["train", "--out", str(run), *tiny_settings, f"data.replay.path={old}", "data.replay.share=0.05"]
    assert main([*words, "train.tokens=512"]) == Exit.DONE
    scores = json.loads(next((run / "evals").glob("*.json")).read_text())["sources"]
    assert set(scores) == {"notes", "prose", "replay-notes", "replay-prose"}
    capsys.readouterr()
    assert main(["verify", str(run)]) == Exit.DONE
    assert main(["resume", str(run), "--train.tokens", "768"]) == Exit.DONE


def test_text_of_another_tokenizer_is_not_replayed(tmp_path: Path, tiny_corpus: Path) -> None:
    other = write_corpus(tmp_path / "other", specials=("[MASK]",))
    config = DataConfig(replay=ReplayConfig(path=str(other)))
    with pytest.raises(UsageError, match=r"data.replay.path: .* another tokenizer .*hornbook tokenize"):
        open_corpus(config, tiny_corpus)
