"""From published files to figures: translation in the run and after it, and GLUE's score over several runs."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hornbook.cli.main import main
from hornbook.errors import Exit
from hornbook.text.config.labels import AnswerLabels, ClassLabels, LabelsConfig, TagLabels
from hornbook.text.config.text import BPE, SourceConfig, TextConfig
from hornbook.text.refinery.pipeline.prepare import prepare
from hornbook.text.tokenizer.tokenize import tokenize

Launch = Callable[..., Any]
NUMBERS = {"eins": "one", "zwei": "two", "drei": "three", "vier": "four", "sechs": "six", "sieben": "seven"}


def make(folder: Path, labels: LabelsConfig, **sources: SourceConfig) -> Path:
    config = TextConfig(sources=sources, labels=labels, steps=[], tokenizer=BPE(vocab=280))
    prepare(config, folder / "data", workers=1)
    tokenize(folder / "data", config, workers=1)
    return folder / "data"


def test_parallel_files_are_learned_and_their_translations_scored(
    tmp_path: Path, launch_run: Launch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("sacrebleu")
    for name in ("train", "test"):
        (tmp_path / f"{name}.de").write_text("".join(f"{word}\n" for word in NUMBERS))
        (tmp_path / f"{name}.en").write_text("".join(f"{word}\n" for word in NUMBERS.values()))
    labels = AnswerLabels(prompt="de", answer="en", template="to English: {prompt}")
    files = {name: SourceConfig(paths=[str(tmp_path / f"{name}.de")], layout="parallel") for name in ("train", "test")}
    files["train"], files["test"] = (
        files["train"].model_copy(update={"split": "train"}),
        files["test"].model_copy(update={"split": "validation"}),
    )
    data = make(tmp_path, labels, **files)
    task = f'{{kind = "translation", path = "{tmp_path}/test.de", layout = "parallel", max_tokens = 6}}'
    words = ("model.kind=encoder_decoder", "data.objective.kind=seq2seq", f"data.path={data}", f"eval.tasks=[{task}]")
    assert launch_run(tmp_path / "run", *words, "eval.every=6") == Exit.DONE
    (record,) = sorted((tmp_path / "run" / "evals").glob("step-*.json"))[-1:]
    scores = json.loads(record.read_text())["tasks"]["translation"]
    assert scores["items"] == len(NUMBERS)
    assert 0 <= scores["bleu"] <= 100
    capsys.readouterr()
    assert main(["eval", str(tmp_path / "run")]) == Exit.DONE
    told = " ".join(capsys.readouterr().err.split())
    assert "translation: bleu" in told
    assert "bleu signature nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:" in told


def test_runs_on_tasks_of_a_benchmark_have_its_score(
    tmp_path: Path, launch_run: Launch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("train", "dev"):
        lines = [f"{n}\tsay {word}\tsaid {word}\t{'not_' * (n % 2)}entailment" for n, word in enumerate(NUMBERS)]
        (tmp_path / f"{name}.tsv").write_text("\n".join(["index\tsentence1\tsentence2\tlabel", *lines]) + "\n")
    sources = {
        "train": SourceConfig(paths=[str(tmp_path / "train.tsv")], split="train"),
        "dev": SourceConfig(paths=[str(tmp_path / "dev.tsv")], split="validation"),
    }
    data = make(tmp_path, ClassLabels(layout="rte"), **sources)
    words = (
        "data.objective.kind=labels",
        "data.objective.token=last",
        "model.head.kind=classification",
        'model.head.labels=["entailment", "not_entailment"]',
        f"data.path={data}",
    )
    assert launch_run(tmp_path / "run", *words) == Exit.DONE
    capsys.readouterr()
    assert main(["eval", str(tmp_path / "run"), str(tmp_path / "run"), "--json"]) == Exit.DONE
    found = json.loads(capsys.readouterr().out)
    first, second = found["models"]
    assert first == second
    score = {"score": first["accuracy"], "score_se": first["accuracy_se"]}
    assert first["benchmark"] == {"task": "rte", **score}
    assert 0 < first["loss_se"] < first["loss"]
    (record,) = sorted((tmp_path / "run" / "evals").glob("step-*.json"))[-1:]
    kept = json.loads(record.read_text())["all"]
    assert kept.items() <= first.items()
    assert not [name for name in kept if name.endswith("_se")], "they take seconds, too long in a run"
    assert found["suites"]["glue"]["tasks"] == {"rte": first["accuracy"]}
    assert found["suites"]["superglue"]["score"] is None
    assert main(["eval", str(tmp_path / "run"), str(tmp_path / "run")]) == Exit.DONE
    told = " ".join(capsys.readouterr().err.split())
    assert f"rte: score {first['accuracy']:.4f} +- {first['accuracy_se']:.4f}" in told
    assert f"+-{first['accuracy_se']:.4f}" in told
    assert "glue: no score without cola, sst2, mrpc, stsb, qqp, mnli, qnli, wnli (rte " in told
    assert (
        main(["eval", str(tmp_path / "run"), str(tmp_path / "run"), "--compare", str(tmp_path / "run")]) == Exit.USAGE
    )


def test_labels_of_two_models_are_compared_under_any_tokenizers(
    tmp_path: Path, launch_run: Launch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [{"tokens": [word, "is", str(n)], "tags": ["B-N", "O", "O"]} for n, word in enumerate(NUMBERS)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    splits: tuple[Any, ...] = ("train", "validation")
    sources = {split: SourceConfig(paths=[str(tmp_path / "rows.jsonl")], split=split) for split in splits}
    for name, vocab, tags in (("a", 258, ["O", "B-N"]), ("b", 280, ["O", "B-N"]), ("c", 280, ["B-N", "O"])):
        config = TextConfig(sources=sources, labels=TagLabels(labels=tags), steps=[], tokenizer=BPE(vocab=vocab))
        prepare(config, tmp_path / f"data-{name}", workers=1)
        tokenize(tmp_path / f"data-{name}", config, workers=1)
        words = ("data.objective.kind=labels", "model.head.kind=token_classification", "train.tokens=512")
        named = f"model.head.labels={json.dumps(tags)}"
        assert launch_run(tmp_path / name, *words, named, f"data.path={tmp_path / f'data-{name}'}") == Exit.DONE
    capsys.readouterr()
    one, other, third = (str(tmp_path / name) for name in "abc")
    assert main(["eval", one, "--compare", other]) != Exit.DONE
    assert "another tokenizer" in capsys.readouterr().err
    words = ["eval", one, "--data", str(tmp_path / "rows.jsonl")]
    assert main([*words, "--compare", other, "--json"]) == Exit.DONE
    found = json.loads(capsys.readouterr().out)
    assert found["sources"]["rows"].keys() == {"loss", "accuracy", "precision", "recall", "f1"}
    assert {each["items"] for each in found["sources"]["rows"].values()} == {len(NUMBERS)}
    assert main([*words, "--json"]) == Exit.DONE
    alone = json.loads(capsys.readouterr().out)
    assert found["all"]["f1"]["first"] == pytest.approx(alone["f1"])
    assert main([*words, "--compare", other]) == Exit.DONE
    told = capsys.readouterr().err
    assert f"rows ({len(NUMBERS)})" in told
    assert max(map(len, told.splitlines()[1:])) <= 80
    assert main([*words, "--compare", third]) == Exit.USAGE
    assert "predict other labels" in capsys.readouterr().err
