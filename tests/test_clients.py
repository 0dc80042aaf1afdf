"""The benchmark of clients: its models, what it makes of answers, its table. Most clients are not installed."""

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.serve import client_side, clients
from benchmarks.serve.client_side import Case, Client, Unsuited
from benchmarks.serve.page import clients as section
from hornbook.model.hf.hf_config import class_name

CLASSES = {
    "GPT-2": "GPT2LMHeadModel",
    "LLaMA": "LlamaForCausalLM",
    "Qwen3": "Qwen3ForCausalLM",
    "NeoX": "GPTNeoXForCausalLM",
    "Mixtral": "MixtralForCausalLM",
    "BERT": "BertForMaskedLM",
    "tiny-bert": "RobertaPreLayerNormForMaskedLM",
    "tiny-classify": "RobertaPreLayerNormForSequenceClassification",
    "ModernBERT": "ModernBertForMaskedLM",
    "T5": "T5ForConditionalGeneration",
    "BART": "MBartForConditionalGeneration",
}
CASE: Case = {"name": "LLaMA", "kind": "decoder", "auto": "CausalLM", "ends": [0], "mask": 9}
CASE |= {
    "prompts": [{"ids": [1, 2], "answer": [3], "answer_text": "c"}, {"ids": [1], "answer": [4], "answer_text": "d"}]
}
ARRAYS = {f"{kind}{number}": np.ones((2 - number, 5)) for kind in ("logits", "hidden") for number in range(2)}


@pytest.mark.parametrize("name", clients.MODELS)
def test_the_models_are_of_the_architectures_that_they_are_named_after(name: str) -> None:
    assert class_name(clients.config_of(name)) == CLASSES[name]


@pytest.mark.filterwarnings("default::DeprecationWarning")
def test_a_reference_is_what_transformers_computes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the recipe to the row, with the one client that the tests have; GPT-2 is exported without padding rows."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(clients, "FORMS", ("hf",))
    (case,) = clients.make_cases(tmp_path, ["GPT-2"])
    assert case["rows"] == clients.VOCAB
    assert sum(prompt["chat"] for prompt in case["prompts"]) == len(clients.CHATS)
    (tmp_path / "served.json").write_text(json.dumps([case]))
    only = [each for each in client_side.CLIENTS if each.package == "transformers"]
    monkeypatch.setattr(client_side, "CLIENTS", only)
    client_side.main(tmp_path)
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert [(row["error"], row["equal"], row["texts"]) for row in rows] == [("", 10, 10), ("", 8, 8), ("", 10, 10)]
    assert rows[0]["difference"] < 1e-5


def test_a_row_says_what_differs() -> None:
    def row(logits: list[np.ndarray] | None, texts: list[object] | None) -> dict[str, object]:
        found = client_side.judge(Client("some", lambda _: (logits, texts), "way"), CASE, ARRAYS, "1.0")
        assert found is not None
        return found

    right = [ARRAYS["logits0"], ARRAYS["logits1"]]
    named = {"client": "some way", "version": "1.0", "model": "LLaMA"}
    assert row(right, [[3], "d"]) == named | {"difference": 0.0, "equal": 2, "texts": 2, "error": ""}
    assert row([right[0] * 1.5, right[1]], None)["difference"] == 0.5
    assert row([right[1], right[1]], None)["difference"] == float("inf")
    assert row([right[0] * np.nan, right[1]], None)["difference"] == float("inf")
    assert row(None, [[3], "c"])["equal"] == 1


def test_a_client_that_fails_is_a_row_and_one_that_is_not_meant_is_none() -> None:
    def fail(_: Case) -> client_side.Answer:
        raise ValueError("no  such\nmodel")

    def refuse(_: Case) -> client_side.Answer:
        raise Unsuited

    row = client_side.judge(Client("some", fail), CASE, ARRAYS, "1.0")
    assert row is not None
    assert row["error"] == "ValueError: no such model"
    assert clients.cell(row) == "ValueError"
    assert client_side.judge(Client("some", refuse), CASE, ARRAYS, "1.0") is None


def test_texts_end_with_the_first_end_and_encoders_answer_at_their_mask() -> None:
    assert client_side.cut([5, 6, 0, 7], CASE) == [5, 6]
    case = CASE | {"prompts": [{"ids": [1, 9, 2]}, {"ids": [4]}]}
    rows = [np.array([[0, 0, 7], [0, 5, 0], [9, 0, 0]]), np.array([[1, 0, 0]])]
    assert client_side.chosen(case, rows) == [[1], [0]]


def test_greedy_texts_of_a_function_of_tokens() -> None:
    def count(ids: list[int]) -> np.ndarray:
        return np.eye(6)[[(each + 1) % 6 for each in ids]]

    logits, texts = client_side.greedy(CASE | {"new": 4}, count)
    assert [len(each) for each in logits or ()] == [2, 1]
    assert texts == [[3, 4, 5], [2, 3, 4, 5]]


def test_the_table_has_a_line_for_each_client_and_version() -> None:
    def row(version: str, model: str, **more: object) -> dict[str, object]:
        return {"client": "some", "version": version, "model": model, "difference": 1e-6, "equal": 9, "texts": 10,
                "error": ""} | more  # fmt: skip

    rows = clients.merged(
        [row("1", "BERT"), row("2", "GPT-2"), row("1", "BERT", equal=10), row("2", "T5", error="E: x")]
    )
    assert clients.table(rows) == [
        ["some 1", *("1e-06, 10/10" if name == "BERT" else "" for name in clients.MODELS)],
        ["some 2", *({"GPT-2": "1e-06, 9/10", "T5": "E"}.get(name, "") for name in clients.MODELS)],
    ]
    page = "\n".join(section({"rows": rows, "prompts": 10, "new_tokens": 12}))
    assert "* some 2, T5: E: x" in page
