"""A poisoned step names its documents; its losses are those that the step had."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from hornbook.cli.data.why import otherwise, reason_lines
from hornbook.cli.main import main
from hornbook.data.batch import DocumentRef
from hornbook.errors import IntegrityError, UsageError
from hornbook.files.journal import Appender, read_records
from hornbook.files.run_directory import RunDir
from hornbook.files.run_status import steps_that_count
from hornbook.run.diagnose.blame import (
    NON_TEXT,
    Blame,
    Blamed,
    Usual,
    blame_skipped,
    blame_step,
    non_text_share,
    repeats,
)
from tests.conftest import TINY_RUN, WORDS, write_shard, write_tokenizer

BAD = {3: "ab " * 60, 11: "\u2603\u2622\u2620\u26a1" * 40, 12: "the model learns to read one"}
"""Numbers of documents -> what is wrong with them; 12 is text as good as any, stored eight times."""


def poisoned(root: Path) -> Path:
    """One source in which a document repeats itself, one is of symbols, and eight are equal."""
    from hornbook.text.tokenizer.tokenizer import Tokenizer

    write_tokenizer(root / "tokenizer")
    tokenizer, draw = Tokenizer.load(root / "tokenizer"), np.random.default_rng(1)
    texts = [BAD.get(number, " ".join(draw.choice(WORDS, 25))) for number in range(60)]
    texts[12:20] = [texts[12]] * 8
    documents = [ids.tolist() for ids in tokenizer.encode_arrays(texts)]
    entry = write_shard(root, "tokens/train/notes/00000", documents)
    index = {
        "dtype": "uint16", "delimiter_id": tokenizer.delimiter_id, "end_id": tokenizer.end_id,
        "vocab_size": tokenizer.vocab_size, "tokenizer_digest": tokenizer.digest,
        "shards": [{"split": "train", "source": "notes", **entry}],
    }  # fmt: skip
    (root / "tokens" / "index.json").write_text(json.dumps(index))
    return root


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    """One pass over the poisoned source, with a learning rate at which the rest is learned before it ends."""
    folder = tmp_path_factory.mktemp("poisoned")
    words = (f"data.path={poisoned(folder / 'data')}", *TINY_RUN, "train.tokens=none", "train.epochs=1",
             "train.sequence=128", "train.batch_tokens=512", "optim.lr=0.03", "checkpoint.every=2")  # fmt: skip
    assert main(["-q", "train", "--out", str(folder / "run"), *words]) == 0
    return RunDir(folder / "run")


def step_of(run: RunDir, number: int) -> int:
    """The first step that read a document."""
    from hornbook.run.doctor.exposure import Tracer

    return Tracer(f"tokens/train/notes/00000#{number}", [run]).exposure(run).steps[0]


@pytest.mark.parametrize(("number", "reason"), [(3, "in succession"), (11, "are no text"), (12, "times in the step")])
def test_a_bad_document_is_named_first(run: RunDir, number: int, reason: str) -> None:
    blame, _ = blame_step(run, step_of(run, number))
    marked = {each.ref.id: each for each in blame.marked}
    assert any(reason in text for text in marked[f"tokens/train/notes/00000#{number}"].reasons)
    assert blame.documents[: len(marked)] == blame.marked


def test_the_losses_are_those_of_the_step(run: RunDir) -> None:
    """Right behind a checkpoint nothing was learned in between, and the tiny run has no dropout."""
    blame, samples = blame_step(run, 5)
    assert blame.weights.endswith("step-00000004")
    assert blame.loss == pytest.approx(samples.record["loss"], rel=1e-5)
    assert blame.usual is not None
    assert blame.loss is not None
    excess = sum(each.excess or 0.0 for each in blame.documents)
    assert excess == pytest.approx(blame.loss - blame.usual.median, rel=1e-6)
    assert sum(each.share for each in blame.documents) == pytest.approx(1.0)


def test_the_first_step_is_judged_by_the_initial_values(run: RunDir) -> None:
    blame, samples = blame_step(run, 1)
    assert blame.weights == "the initial values"
    assert blame.loss == pytest.approx(samples.record["loss"], rel=1e-5)


def test_without_weights_the_text_is_judged(run: RunDir, tmp_path: Path) -> None:
    copy = RunDir(shutil.copytree(run.path, tmp_path / "copy"))
    for folder in copy.checkpoints.glob("step-*"):
        (folder / "config.json").write_text("{}")
    blame, _ = blame_step(copy, 5)
    assert "config.json" in blame.problem
    assert (blame.loss, blame.usual) == (None, None)
    assert sum(each.share for each in blame.documents) == pytest.approx(1.0)
    assert {each.loss for each in blame.documents} == {None}


def test_attempts_and_skips(run: RunDir, tmp_path: Path) -> None:
    """As after a rollback: step 4 was done, its samples skipped, and step 4 done again on those behind."""
    copy = RunDir(shutil.copytree(run.path, tmp_path / "copy"))
    old = steps_that_count(copy)[3]
    first, count = old["first_sample"], old["num_samples"]
    with Appender(copy.events, chained=True) as ledger:
        window = {"windows": [[first, first + count]], "effective_step": 3, "left_out": 1}
        ledger.append({"kind": "rollback", "attempt": 1, "step": 4, "tokens": 0, **window})
    again = steps_that_count(copy)[4] | {"step": 4, "attempt": 2}
    with Appender(copy.metrics) as lines:
        lines.append(again)
    value = json.loads(call("why", f"{copy.path}@4", "--json"))
    assert (value["attempt"], value["other_attempts"], value["skipped"]) == (2, [1], [])
    before = json.loads(call("why", f"{copy.path}@4", "--attempt", "1", "--json"))
    assert {each["sample"] for each in before["documents"]} == set(range(first, first + count))
    assert "never read again (rollback, attempt 1, step 4)" in before["skipped"][0]
    skipped = blame_skipped(copy)
    assert {each.sample for each in skipped.documents} == set(range(first, first + count))
    with pytest.raises(UsageError, match=r"attempt 7 of .* has not done step 4"):
        blame_step(copy, 4, 7)


def test_a_skipped_step_of_usual_documents_names_what_to_look_at_next() -> None:
    assert "`hornbook doctor runs/a --step 7`" in otherwise({"run": "runs/a", "step": 7, "loss": None})
    assert "guard.clip_z" in otherwise({"run": "runs/a", "step": 7, "loss": 9.0})


def test_a_document_of_many_pieces_has_one_line() -> None:
    ref = DocumentRef("web", "web/00000", 1, "a", "a.txt", 0, 9)
    odd, other = (Blamed(0, each, 0.1, 0.0, 0, 0.9, 1, 0) for each in (ref, replace(ref, id="b")))
    assert reason_lines(Blame([odd, other, replace(odd, sample=1)])) == [
        "web a: 90% of its characters are no text (2 pieces)",
        "web b: 90% of its characters are no text",
    ]


def test_the_list_goes_back_into_prepare(run: RunDir, tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    step = step_of(run, 3)
    call("why", f"{run.path}@{step}", "--exclude", str(path))
    entries = list(read_records(path))
    assert "tokens/train/notes/00000#3" in [each["id"] for each in entries]
    assert {"source", "origin", "reason", "run", "step", "shard"} <= entries[0].keys()
    rows = [{"id": f"tokens/train/notes/00000#{number}", "text": f"text {number}"} for number in range(20)]
    (tmp_path / "notes.jsonl").write_text("\n".join(map(json.dumps, rows)))
    words = ["prepare", str(tmp_path / "notes.jsonl"), "--id-field", "id", "--workers", "1", "--exclude", str(path)]
    made = json.loads(call(*words, "--out", str(tmp_path / "data"), "--json"))
    excluded = made["sources"]["notes"]["dropped"]["excluded"]["rows"]
    assert excluded == sum(int(each["id"].partition("#")[2]) < len(rows) for each in entries) > 0
    (tmp_path / "bad.jsonl").write_text('{"name": 1}\n')
    assert main([*words, "--out", str(tmp_path / "other")]) == 2


def test_other_tokens_are_an_error(run: RunDir, tmp_path: Path) -> None:
    copy = RunDir(shutil.copytree(run.path, tmp_path / "copy"))
    copy.metrics.write_text(copy.metrics.read_text().replace(steps_that_count(run)[2]["token_hash"], "0" * 16))
    with pytest.raises(IntegrityError, match="the data has others now"):
        blame_step(copy, 3)
    assert main(["why", str(copy.path)]) == 2
    assert main(["why", f"{copy.path}@99"]) == 2
    assert main(["why", f"{copy.path}@2", "--skipped"]) == 2


def test_repeats_and_characters() -> None:
    assert repeats(np.array([1, 2, 3, 4, 5, 6, 7, 8], np.int32)) == (0.0, 1)
    assert repeats(np.array([], np.int32)) == (0.0, 1)
    share, longest = repeats(np.array([9, 9, *[1, 2, 3] * 5, 7, 7, 7], np.int32))
    assert (round(share * 20), longest) == (15, 5)
    assert (
        repeats(np.tile(np.arange(14, dtype=np.int32), 4)).longest == 1
    )  # 14-grams are longer than what is looked for
    assert repeats(np.full(40, 5, np.int32)) == (1.0, 40)
    assert non_text_share("Good text: (1 + 2) = \u201c3\u201d, na\u00efve \u4e2d\u6587\n") == 0.0
    assert non_text_share("\u2603\u2603ab") == NON_TEXT
    assert Usual(5.0, 0.5, 10).z(7.0) == 4.0


def call(*words: str) -> str:
    """What a command writes to stdout; it must end well."""
    import contextlib
    import io

    with contextlib.redirect_stdout(io.StringIO()) as text:
        assert main(["-q", *words]) == 0
    return text.getvalue()


@pytest.mark.parametrize("recipe", [pytest.param("tiny-bert", marks=pytest.mark.slow), "tiny-t5"])
def test_encoders_and_pairs(recipe: str, marked_corpus: Path, tmp_path: Path) -> None:
    words = (f"data.path={marked_corpus}", *TINY_RUN, "train.tokens=640")
    assert main(["-q", "train", recipe, "--out", str(tmp_path / "run"), *words]) == 0
    run = RunDir(tmp_path / "run")
    blame, samples = blame_step(run, 5)
    assert not blame.problem
    assert blame.loss == pytest.approx(samples.record["loss"], rel=1e-3 if recipe == "tiny-bert" else 1e-5)
    assert blame.usual is not None
    assert blame.loss is not None
    excess = sum(each.excess or 0.0 for each in blame.documents)
    assert excess == pytest.approx(blame.loss - blame.usual.median, abs=1e-5)
    assert torch.isfinite(torch.tensor([each.loss or 0.0 for each in blame.documents])).all()
