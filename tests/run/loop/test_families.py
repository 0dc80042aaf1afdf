"""Runs of encoders, encoder-decoders and experts from token shards to generated text, in this process."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hornbook.cli.main import main
from hornbook.errors import Exit
from tests.run.conftest import BERT
from tests.run.launcher import Launcher

Branch = Callable[[Path], list[dict[str, Any]]]
pytestmark = pytest.mark.filterwarnings("default::DeprecationWarning")  # of transformers' own imports

MASKED = (
    *BERT,
    'model.head.kind="masked"',
    'data.objective.kind="masked"',
)
SPAN = (
    'model.kind="encoder_decoder"',
    "model.attention.scale=1.0",
    'model.mlp={kind="glu", activation="gelu_tanh"}',
    'model.position={kind="relative", length=64}',
    "model.head.tied=false",
    'model.init.kind="t5"',
    'data.objective.kind="span"',
)
EXPERTS = ('model.mlp={kind="experts", count=4, active=2, hidden=16}', "model.attention.kv_heads=1")
KINDS = {"masked": (MASKED, "the [MASK] reads"), "span": (SPAN, "the <extra_id_0> reads"), "experts": (EXPERTS, "the")}
COMMON = ("model.layers=2", "model.dropout=0.1", "eval.every=6", "eval.prompt=the model", "eval.sample_tokens=4")


@pytest.fixture(scope="module", params=KINDS)
def finished(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    marked_corpus: Path,
    tiny_settings: tuple[str, ...],
) -> tuple[str, Path]:
    """(kind, folder of its finished run)."""
    run = tmp_path_factory.mktemp("run") / request.param
    words = [*tiny_settings, f"data.path={marked_corpus}", *COMMON, *KINDS[request.param][0]]
    assert main(["train", "--out", str(run), *words]) == Exit.DONE
    return request.param, run


def test_a_run_goes_on_from_a_checkpoint_with_the_same_bits(
    finished: tuple[str, Path], tmp_path: Path, branch: Branch
) -> None:
    whole, cut = finished[1], tmp_path / "cut"
    shutil.copytree(whole, cut)
    for step in (8, 12):
        shutil.rmtree(cut / f"checkpoints/step-{step:08}")
    for folder in ("evals", "samples"):
        shutil.rmtree(cut / folder)
    assert main(["resume", str(cut)]) == Exit.DONE
    assert branch(cut) == branch(whole)
    for name in ("model.safetensors", "config.json", "trainer/optimizer.safetensors"):
        path = Path("checkpoints/step-00000012") / name
        assert (cut / path).read_bytes() == (whole / path).read_bytes()
    one, two = (json.loads((run / "evals/step-00000012.json").read_text()) for run in (whole, cut))
    assert one["all"] == two["all"]
    samples = [json.loads((run / "samples/step-00000012.json").read_text())["text"] for run in (whole, cut)]
    assert samples[0] == samples[1]
    assert samples[0]


def test_a_checkpoint_is_scored_and_answers(finished: tuple[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    kind, run = finished
    capsys.readouterr()
    assert main(["eval", str(run), "--json"]) == Exit.DONE
    found = json.loads(capsys.readouterr().out)
    saved = json.loads((run / "evals/step-00000012.json").read_text())["all"]
    assert found["loss"] == pytest.approx(saved["loss"], rel=1e-5)
    assert (found["tokens"], found["bytes"]) == (saved["tokens"], saved["bytes"])
    assert main(["generate", str(run), "-p", KINDS[kind][1], "--tokens", "4", "--json"]) == Exit.DONE
    answer = json.loads(capsys.readouterr().out)
    if kind == "masked":
        assert len(answer["masks"]) == 1
        assert "[MASK]" not in answer["text"]
    else:
        assert answer["ended"] == ("length" if len(answer["ids"]) == 4 else "end of text")


@pytest.mark.slow
def test_an_export_is_certified(
    finished: tuple[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert main(["export", str(finished[1]), "--to", "hf", "--out", str(tmp_path / "hf"), "--json"]) == Exit.DONE
    certificate = json.loads(capsys.readouterr().out)["certificate"]
    assert certificate["ok"] is True
    assert certificate["tensors_equal"] is True


@pytest.mark.parametrize("kind", [pytest.param("masked", marks=pytest.mark.slow), "span"])
def test_ranks_that_share_a_model_show_the_same_samples(
    kind: str, launcher: Launcher, tmp_path: Path, marked_corpus: Path, tiny_settings: tuple[str, ...]
) -> None:
    """The encoder, which samples call alone, is in pieces on both ranks."""
    found = []
    for number, words in enumerate(([], ["parallel.data=2", "parallel.shard=everything"])):
        run = tmp_path / str(number)
        words += [
            *tiny_settings,
            f"data.path={marked_corpus}",
            *COMMON,
            *KINDS[kind][0],
            "model.width=32",
            "parallel.exact=true",
        ]
        started = launcher.start(["train", "--out", str(run), *words], tmp_path / f"{number}.txt")
        assert started.wait() == 0, started.text
        found.append(json.loads((run / "samples/step-00000012.json").read_text())["text"])
    assert found[0] == found[1]


@pytest.mark.parametrize(("start", "token"), [("end", "<|endoftext|>"), ("pad", "[PAD]")])
def test_answers_begin_in_exports_as_they_did_in_training(
    tmp_path: Path, marked_corpus: Path, tiny_settings: tuple[str, ...], start: str, token: str
) -> None:
    """A T5 shape that learned to begin with the end token was exported with T5's padding token."""
    words = [*tiny_settings, f"data.path={marked_corpus}", *SPAN, f"data.objective.start={start}", "train.tokens=384"]
    run, out, grown, coded = (str(tmp_path / name) for name in ("run", "out", "grown", "coded"))
    assert main(["train", "--out", run, *words]) == Exit.DONE
    assert main(["export", run, "--out", out, "--no-certificate"]) == Exit.DONE
    assert main(["grow", run, "--out", grown, "--layers", "2"]) == Exit.DONE
    assert main(["import", out, "--out", f"{out}-again", "--no-certificate"]) == Exit.DONE
    assert main(["export", run, "--out", coded, "--quantize", "int8"]) == Exit.DONE
    vocab = json.loads((marked_corpus / "tokenizer/tokenizer.json").read_text())["model"]["vocab"]
    (checkpoint,) = Path(run).glob("checkpoints/step-*")
    for folder in (checkpoint, Path(out), Path(grown), Path(f"{out}-again")):
        for name in ("config.json", "generation_config.json"):
            assert json.loads((folder / name).read_text())["decoder_start_token_id"] == vocab[token], folder
    assert json.loads((Path(coded) / "config.json").read_text())["decoder_start_token_id"] == vocab[token]
