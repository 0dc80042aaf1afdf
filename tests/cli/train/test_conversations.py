"""From conversations to a chat model, and on to preferences, by the shipped recipes and the commands of the guide."""

import json
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from hornbook.cli.main import main
from hornbook.errors import Exit

MODEL = ("--model.layers", "1", "--model.width", "16", "--model.heads", "2", "--model.position.length", "64")
TRAIN = ("--train.sequence", "64", "--train.batch_tokens", "256", "--train.micro_batch", "4", "--train.tokens", "512")
SMALL = (*MODEL, *TRAIN, "--train.device", "cpu")


def write(path: Path, rows: Sequence[object]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_recipes_of_conversations_go_from_rows_to_an_answer(
    tmp_path: Path, tiny_corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def call(*words: object) -> str:
        assert main([*map(str, words)]) == Exit.DONE, capsys.readouterr().err
        printed = capsys.readouterr()
        return printed.out + printed.err

    base, chat, better, chats, pairs = (tmp_path / name for name in ("base", "chat", "better", "chats", "pairs"))
    talks = [[{"role": "user", "content": f"ask {n}"}, {"role": "assistant", "content": f"say {n}"}] for n in range(40)]
    answers = [{"prompt": f"ask {n}", "chosen": f"say {n}", "rejected": f"no {n}"} for n in range(40)]
    call("train", "tiny", "--data", tiny_corpus, "--out", base, *SMALL)
    call("prepare", "sft-tiny", write(tmp_path / "c.jsonl", [{"messages": each} for each in talks]), "--out", chats)
    call("tokenize", chats, "--tokenizer", base)
    said = call("train", "sft-tiny", "--data", chats, "--from", base, "--out", chat, *SMALL)
    assert f"next: hornbook chat {chat}" in said
    assert re.search(r"learning rate 0.001 \(recipes/sft-tiny.toml:\d+\)\n", said), "it is for fine-tuning"
    assert '"prompt": "ask 3"' in call("generate", chat, "--chat", "-p", "ask 3", "--tokens", 4, "--json")
    call("prepare", "dpo-tiny", write(tmp_path / "p.jsonl", answers), "--out", pairs)
    call("tokenize", pairs, "--tokenizer", chat)
    call("reference", "dpo-tiny", "--data", pairs, "--from", chat, *SMALL)
    said = call("train", "dpo-tiny", "--data", pairs, "--from", chat, "--out", better, *SMALL)
    assert f"next: hornbook chat {better}" in said
    words = ("train", "sft-tiny", "--data", chats, "--from", base, "--out", tmp_path / "x")
    assert main([*map(str, words)]) == Exit.USAGE
    said = capsys.readouterr().err
    assert "model.layers is 4 (recipes/tiny.toml:" in said
    assert "leave these settings out; of a shipped recipe take a copy without them" in said
    copy = tmp_path / "own.toml"
    call("recipes", "copy", "sft-tiny", copy)
    copy.write_text(copy.read_text().replace('extends = "tiny"\n', ""))
    call("train", copy, "--data", chats, "--from", base, "--out", tmp_path / "x", *TRAIN, "--train.device", "cpu")
