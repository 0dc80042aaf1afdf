"""What messages say: the line of a file, the choices that there are, the last line of a child; and what filters keep.

Each row is a message that no other test reads to its end.
"""

import json
import random
import re
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from hornbook.cli.model.import_ import _without_tokenizer
from hornbook.cli.prepare.classifier import classifier
from hornbook.cli.prepare.review import review
from hornbook.cli.start import demo
from hornbook.cli.start.quickstart import _pinned
from hornbook.data.order.curriculum import _measured
from hornbook.data.order.mixture import _unknown_source, _weights
from hornbook.errors import Exit, HornbookError, LostDeviceError, UsageError
from hornbook.evals.tasks import probes
from hornbook.model.config.mlp_config import ExpertsConfig
from hornbook.model.hf.tables.config_values import _read_feed_forward
from hornbook.model.mlp.experts import Experts
from hornbook.model.surgery.quantization.integers import check_group
from hornbook.optim.config.rule import ITEM_BYTES, StateTensor
from hornbook.run.job.fault_plan import PASSES, PHASES, FaultPoint
from hornbook.run.machine import choose_dtype as precision
from hornbook.settings.fields import outside_part
from hornbook.text.config.content import SHIPPED, MentionsConfig
from hornbook.text.ingest.charsets import UnfitRow
from hornbook.text.ingest.corpora.corpora import CORPORA, corpus_of
from hornbook.text.ingest.labels.conversations import _ROLES, _turn
from hornbook.text.ingest.test_sets import read_rows
from hornbook.text.refinery.exclusions import read_exclusions
from hornbook.text.refinery.report.reviews import Example
from hornbook.text.refinery.words.words import DEFINITIONS
from hornbook.text.tokenizer.train import _at_most


def written(folder: Path, name: str, data: bytes) -> Path:
    folder.joinpath(name).write_bytes(data)
    return folder / name


def rows(folder: Path, name: str, data: bytes) -> list[Any]:
    return list(read_rows("task", [str(written(folder, name, data))]))


def measured(folder: Path) -> Any:
    (folder / "signals").mkdir()
    table = pa.table({"reason": ["kept"], "words.count": [3], "gopher.mean": [1.0]})
    pq.write_table(table, folder / "signals" / "00000.parquet")
    return _measured(folder, cast("Any", None), "words.cout")


def reviewed(folder: Path) -> Any:
    shown = [Example(reason, "s", "1", "a:1", "00", 1, "x") for reason in ("too short", "kept")]
    written(folder, "samples.jsonl", "".join(json.dumps(asdict(each)) + "\n" for each in shown).encode())
    return review(folder, rule="too long")


MESSAGES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no JSON in a test set": (lambda at: rows(at, "a.jsonl", b'{"a": 1}\n\n{"a":\n'), "a.jsonl:3: not JSON ("),
    "no UTF-8 in a test set": (lambda at: rows(at, "a.txt", b"one\ncaf\xe9\n"), "a.txt:2: not UTF-8 (unexpected end"),
    "another format": (lambda at: rows(at, "a.csv", b"a\n1\n"), "a.csv: cannot read csv; give .jsonl, .parquet or"),
    "no JSON in exclusions": (lambda at: read_exclusions(written(at, "x", b'{"id": "a"}\n[\n'), ()), "x:2: not a JSON"),
    "no id in exclusions": (lambda at: read_exclusions(written(at, "x", b'\n\n{"a": 1}\n'), ()), 'x:3: has no "id"; `'),
    "size of a demo": (
        lambda _: _pinned("huge"),
        "'huge': choose one of " + ", ".join(each.name for each in demo.SIZES),
    ),
    "words": (
        lambda at: classifier(at, good=[], bad=[], words="x"),
        "--words x: choose one of " + ", ".join(DEFINITIONS),
    ),
    "rule": (reviewed, "has no examples of 'too long'; it has kept, too short"),
    "column": (measured, "has no column 'words.cout': take one of length, words.count, gopher.mean"),
    "source": (
        lambda _: _weights({"wep": 1.0}, {"web": 3, "code": 2}, "data.weights", []),
        "data.weights: there is no source 'wep': did you mean 'web'? the data has web, code",
    ),
    "source without text": (
        lambda _: _weights({"web": 0.5, "code": 1.0}, {"web": 3, "code": 0}, "data.weights", []),
        "data.weights.code: the source has no training tokens: give it weight 0 or leave it out",
    ),
    "terms": (lambda _: MentionsConfig(terms="xx"), "'xx' is not one of " + ", ".join(SHIPPED) + ": name one, or"),
    "role": (lambda _: _turn({"role": "x"}, 2), "message 2 has the role 'x': known are " + ", ".join(sorted(_ROLES))),
    "corpus": (lambda _: corpus_of("x"), "there is no corpus 'x': name one of " + ", ".join(CORPORA) + ", or an add"),
    "groups": (lambda _: check_group(96, 64, "w", "k"), "k: w has rows of 96 values, which groups of 64 do not divide"),
    "groups that fit": (lambda _: check_group(96, 64, "w", "k"), "do not divide: take one of 16, 32, 48"),
    "no group fits": (lambda _: check_group(10, 4, "w", "k"), "do not divide: take scales per channel"),
    "dtype": (lambda _: StateTensor("m", dtype=cast("Any", "int3")), "'int3': take one of " + ", ".join(ITEM_BYTES)),
    "activation": (
        lambda _: _read_feed_forward({"feed_forward_proj": "x"}, {}),
        "'x' is not supported; known are gelu, gelu_new,",
    ),
    "phase": (lambda _: FaultPoint(phase="x"), "must be one of " + ", ".join((*PHASES, *PASSES)) + ", not 'x'"),
    "function": (lambda _: outside_part("json:loads"), "json:loads is no part: a subclass of"),
    "other class": (lambda _: outside_part("json:JSONDecoder"), "json:JSONDecoder is no part: a subclass of"),
    "no build": (lambda _: outside_part("hornbook.settings.fields:Config"), "fields:Config is no part: a subclass of"),
    "no module": (lambda _: outside_part("no_such:X"), "no_such:X cannot be imported (No module named 'no_such'): is"),
}


@pytest.mark.parametrize(("ask", "said"), MESSAGES.values(), ids=MESSAGES)
def test_a_message_says_where_and_what_there_is(tmp_path: Path, ask: Callable[[Path], Any], said: str) -> None:
    with pytest.raises((HornbookError, UnfitRow, ValueError), match=re.escape(said)):
        ask(tmp_path)


def test_sources_of_weight_zero_are_known_and_others_are_named() -> None:
    notes: list[str] = []
    assert _weights({"web": 1.0, "law": 0.0}, {"web": 3, "code": 2, "law": 0}, "data.weights", notes) == {
        "web": 1.0,
        "code": 0.0,
        "law": 0.0,
    }
    assert notes == ["data.weights: without a weight, so not used: code"]
    assert _unknown_source("zzz", {"web": 1}) == "there is no source 'zzz': the data has web"


def test_a_folder_without_tokenizer_says_what_it_has(tmp_path: Path) -> None:
    assert "it has no tokenizer at all, so generate" in _without_tokenizer(tmp_path)
    written(tmp_path, "tokenizer.model", b"")
    assert "it has tokenizer.model alone, which hornbook does not read, so" in _without_tokenizer(tmp_path)


@pytest.mark.parametrize(("code", "kind"), [(Exit.USAGE, UsageError), (Exit.HARDWARE, LostDeviceError)])
def test_a_child_that_fails_is_quoted_by_its_last_line(
    monkeypatch: pytest.MonkeyPatch, code: Exit, kind: type[HornbookError]
) -> None:
    done = SimpleNamespace(returncode=int(code), stdout="", stderr="a warning\nno GPU answers\n")
    monkeypatch.setattr(precision, "choose_device", lambda _: torch.device("cuda"))
    monkeypatch.setattr(precision.subprocess, "run", lambda *_, **__: done)
    recipe = SimpleNamespace(train=SimpleNamespace(device="auto"), parallel=SimpleNamespace(world=2))
    with pytest.raises(kind, match=r"^no GPU answers$") as caught:
        precision._choose(cast("Any", recipe))
    assert type(caught.value) is kind


@pytest.mark.parametrize(("weights", "names"), [((0, 0), []), ((0.1, 0), ["balance"]), ((0, 0.1), ["router_z"])])
def test_experts_name_only_losses_that_count(weights: tuple[float, float], names: list[str]) -> None:
    config = ExpertsConfig(count=4, active=2, balance_loss=weights[0], z_loss=weights[1])
    assert Experts(8, 8, config, 0).loss_names == names


def test_a_small_vocabulary_keeps_each_character() -> None:
    scores = {"the": -1.0, "a": -9.0, "of": -2.0, "b": -8.0}
    assert _at_most(3, scores) == [("the", -1.0), ("b", -8.0), ("a", -9.0)]
    assert _at_most(1, scores) == [("b", -8.0), ("a", -9.0)]


def test_a_cloze_asks_for_no_single_letter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "held_out_texts", lambda *_: ["one two three four five six a wall 7 I stone x"])
    corpus = SimpleNamespace(validation={"s": SimpleNamespace(documents=1)})
    config = SimpleNamespace(items=9, words=3)
    context = SimpleNamespace(corpus=corpus, tokenizer=None)
    passages = probes._passages(cast("Any", config), cast("Any", context), random.Random(1))
    assert sorted(word for _, word in passages) == ["stone", "wall"]
