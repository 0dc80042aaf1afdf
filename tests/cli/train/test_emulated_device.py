"""Commands on an emulated GPU: they choose it by themselves, and say what they say on a CPU."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hornbook.cli.main import main
from hornbook.errors import Exit
from hornbook.files.run_directory import RunDir
from tests.cli.train.test_conversations import SMALL, write
from tests.helpers.emulated_cuda import emulated_cuda

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]
ON_GPU = ("--train.device", "cuda", "--train.precision", "fp32")
QUESTIONS: dict[str, tuple[str, ...]] = {
    "eval": ("eval", "RUN", "--json"),
    "tasks": ("eval", "RUN", "--tasks", "copy,cloze", "--json"),
    "generate": ("generate", "RUN", "-p", "the", "--tokens", "6", "--greedy", "--json"),
    "sample": (
        "generate",
        "RUN",
        "-p",
        "the",
        "--tokens",
        "6",
        "--seed",
        "3",
        "--top-p",
        "0.9",
        "--logprobs",
        "2",
        "--json",
    ),
    "beams": ("generate", "RUN", "-p", "the", "--tokens", "6", "--beams", "2", "--json"),
    "draft": ("generate", "RUN", "-p", "the", "--tokens", "6", "--greedy", "--draft", "RUN", "--json"),
    "verify": ("verify", "RUN", "--json"),
}
CHANGING = ("seconds", "tokens_per_second", "device", "time", "speed")
Call = Callable[..., str]


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Call:
    def run(*words: object) -> str:
        capsys.readouterr()
        assert main([*map(str, words)]) == Exit.DONE, capsys.readouterr().err
        return capsys.readouterr().out

    return run


def close(got: Any, want: Any) -> bool:
    """The same but for times, and numbers up to roundings."""
    if isinstance(want, dict):
        names = [name for name in want if not any(each in name for each in CHANGING)]
        return all(close(got[name], want[name]) for name in names)
    if isinstance(want, list):
        return len(got) == len(want) and all(map(close, got, want))
    return got == pytest.approx(want, rel=1e-3, abs=1e-5) if isinstance(want, float) else got == want


@pytest.mark.parametrize("name", QUESTIONS)
def test_a_command_says_what_it_says_on_a_cpu(
    name: str, tmp_path: Path, launch_run: Callable[..., Exit], call: Call
) -> None:
    launch_run(tmp_path / "run")
    words = [str(tmp_path / "run") if word == "RUN" else word for word in QUESTIONS[name]]
    want = call(*words)
    with emulated_cuda() as waits:
        got = call(*words)
        assert waits.launches > 0 or name == "verify"
    for one, other in zip(got.splitlines(), want.splitlines(), strict=True):
        assert close(json.loads(one), json.loads(other)), (one, other)


def losses(run: Path) -> list[float]:
    records = map(json.loads, RunDir(run).metrics.read_text().splitlines())
    return [each["loss"] for each in records if "step_tokens" in each]


@pytest.fixture
def pairs(tmp_path: Path, tiny_corpus: Path, call: Call) -> tuple[Path, Path]:
    """A model that answers, and pairs of answers."""
    base, chat, chats, pairs = (tmp_path / name for name in ("base", "chat", "chats", "pairs"))
    talks = [[{"role": "user", "content": f"ask {n}"}, {"role": "assistant", "content": f"say {n}"}] for n in range(40)]
    answers = [{"prompt": f"ask {n}", "chosen": f"say {n}", "rejected": f"no {n}"} for n in range(40)]
    call("train", "tiny", "--data", tiny_corpus, "--out", base, *SMALL)
    call("prepare", "sft-tiny", write(tmp_path / "c.jsonl", [{"messages": each} for each in talks]), "--out", chats)
    call("tokenize", chats, "--tokenizer", base)
    call("train", "sft-tiny", "--data", chats, "--from", base, "--out", chat, *SMALL)
    call("prepare", "dpo-tiny", write(tmp_path / "p.jsonl", answers), "--out", pairs)
    call("tokenize", pairs, "--tokenizer", chat)
    return chat, pairs


def test_answers_are_compared_with_those_of_a_reference(tmp_path: Path, pairs: tuple[Path, Path], call: Call) -> None:
    chat, data = pairs
    call("reference", "dpo-tiny", "--data", data, "--from", chat, *SMALL)

    def train(out: str, kind: str, *words: str) -> list[float]:
        how = () if kind == "dpo" else ("--data.objective", f'{{kind="{kind}"}}')
        call("train", "dpo-tiny", "--data", data, "--from", chat, "--out", tmp_path / out, *SMALL, *how, *words)
        return losses(tmp_path / out)

    for kind in ("dpo", "ipo", "orpo"):
        want = train(f"{kind}-cpu", kind, "--train.precision", "fp32")
        with emulated_cuda():
            call("reference", "dpo-tiny", "--data", data, "--from", chat, *SMALL, *ON_GPU)
            assert train(f"{kind}-gpu", kind, *ON_GPU) == pytest.approx(want, rel=1e-3)
