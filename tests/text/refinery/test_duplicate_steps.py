"""The steps in a recipe's list, from files to what is written."""

import json
from pathlib import Path

import numpy as np
import pytest

from hornbook.errors import UsageError
from hornbook.text.config.text import TextConfig
from tests.text.refinery.running import judge, prepare

RNG = np.random.default_rng(0)
WORDS = [f"word{number}" for number in RNG.integers(0, 10**6, 400)]


def passage(first: int, last: int) -> str:
    return " ".join(WORDS[first:last])


STEPS = TextConfig.model_validate(
    {"steps": [{"kind": kind} for kind in ("near_dedup", "paragraph_dedup", "line_dedup", "span_dedup")]}
).steps


def test_a_recipe_with_all_of_them(tmp_path: Path) -> None:
    line = "All rights reserved, whoever reads this line.\n"
    texts = [
        passage(0, 100) + "\n" + line,
        passage(0, 99) + " changed\n" + line + "and longer",
        passage(100, 200) + "\n" + line + "its own end",
        "its own beginning " + passage(120, 190) + " another end",
        passage(200, 300),
        passage(200, 300),
    ]
    kept, signals = prepare(tmp_path, STEPS, texts)
    assert kept == [
        texts[1],
        passage(100, 200) + "\nits own end",
        "its own beginning  another end",
        passage(200, 300),
    ]
    assert signals["reason"].to_pylist().count("near duplicate") == 2


def test_a_document_that_is_cut_whole_is_dropped(tmp_path: Path) -> None:
    kept, signals = prepare(tmp_path, STEPS[1:2], [passage(0, 50) + "\n\n" + passage(50, 99), passage(50, 99)])
    assert len(kept) == 1
    assert signals["reason"].to_pylist() == ["kept", "nothing left"]


def test_decisions_do_not_depend_on_tasks() -> None:
    texts = [passage(first, first + 60) for first in RNG.integers(0, 340, 80)]
    whole, _ = judge(STEPS[:1], texts)
    split, _ = judge(STEPS[:1], texts[:7], texts[7:8], texts[8:50], texts[50:])
    assert whole == split
    assert 5 < whole.count("near duplicate") < 75


def test_tasks_without_documents_are_no_obstacle() -> None:
    reasons, _ = judge(STEPS, [], [passage(0, 99), passage(0, 99) + " more"], [])
    assert reasons == ["near duplicate", "kept"]
    assert judge(STEPS, [], [])[0] == []


def test_decontamination_names_the_item_it_found(tmp_path: Path) -> None:
    test_set = tmp_path / "test.jsonl"
    test_set.write_text(json.dumps({"question": passage(0, 30)}) + "\n")
    steps = TextConfig.model_validate({"steps": [{"kind": "decontaminate", "paths": [str(test_set)]}]}).steps
    kept, signals = prepare(tmp_path, steps, ["Look: " + passage(0, 30) + ".", passage(100, 300)])
    assert kept == [passage(100, 300)]
    assert signals["reason"].to_pylist() == ["test item", "kept"]
    assert signals["decontaminate.item"].to_pylist() == [f"{test_set}:1", ""]
    assert signals["decontaminate.hits"].to_pylist() == [18, 0]


def test_a_missing_test_set_is_named(tmp_path: Path) -> None:
    steps = TextConfig.model_validate({"steps": [{"kind": "decontaminate", "paths": ["nowhere.jsonl"]}]}).steps
    with pytest.raises(UsageError, match=r"nowhere\.jsonl"):
        prepare(tmp_path, steps, ["text"])
