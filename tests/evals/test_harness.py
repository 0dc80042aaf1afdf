"""What lm-eval is given: requests by our log-likelihoods, cut and refused; against HFLM where lm-eval is installed."""

import importlib.util
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from jinja2 import TemplateError

from hornbook.cli.main import main
from hornbook.errors import UsageError
from hornbook.evals import harness
from hornbook.evals.harness import HarnessMethods, run_harness
from hornbook.evals.items import mean_and_error
from hornbook.evals.likelihood import Request, log_likelihoods
from hornbook.parallel.world import World
from tests.evals.models import context, engine

WORLD = World(torch.device("cpu"))


@pytest.fixture
def asked(tiny_corpus: Path) -> HarnessMethods:
    return HarnessMethods(engine(), WORLD, context(tiny_corpus, 16))


def test_requests_have_our_likelihoods(asked: HarnessMethods) -> None:
    ids = asked.tok_encode("the model")
    found = asked._loglikelihood_tokens([(("the", "m"), ids[:3], ids[3:]), (None, [0], ids)])
    requests = [Request(ids[:3], ids[3:]), Request([0], ids)]
    expected = log_likelihoods(asked.model, WORLD, requests, asked.context)
    assert found == [
        (nats, right == len(each.continuation)) for each, (nats, right) in zip(requests, expected.tolist(), strict=True)
    ]


def test_long_contexts_are_cut_at_their_beginning(asked: HarnessMethods) -> None:
    long, end = list(range(1, 60)), [5, 6]
    (found,) = asked._loglikelihood_tokens([(("long", "x"), long, end)])
    (short,) = asked._loglikelihood_tokens([(("long", "x"), long[-15:], end)])  # 16 tokens are read, and one predicted
    assert found == short
    with pytest.raises(
        UsageError, match=r"lm-eval, 'x' after 'y': the continuation has 17 tokens, and the model reads 16"
    ):
        asked._loglikelihood_tokens([(("y", "x"), [1], list(range(17)))])


def test_a_continuation_of_no_token_is_named(asked: HarnessMethods) -> None:
    request = SimpleNamespace(args=("the", ""), task_name="facts")
    with pytest.raises(
        UsageError, match=r"lm-eval task facts, request 1: the continuation '' is no token .*doc_to_choice"
    ):
        asked.loglikelihood([request])
    with pytest.raises(UsageError, match="no token is added to those of the context"):
        asked._loglikelihood_tokens([(("the", "e"), [1, 2], [])])


def test_the_begin_token_comes_once_and_where_asked(tiny_corpus: Path) -> None:
    own = context(tiny_corpus, 16)
    begin = own.tokenizer.delimiter_id
    with_bos, without = (HarnessMethods(engine(), WORLD, own, bos=bos) for bos in (True, False))
    plain = own.tokenizer.encode("the")
    assert without.tok_encode("the") == with_bos.tok_encode("the", add_special_tokens=False) == plain
    assert with_bos.tok_encode("the") == [begin, *plain]
    assert with_bos.tok_encode(own.tokenizer.begin + "the") == [begin, *plain], "a text that spells it has it already"
    (found,) = without._loglikelihood_tokens([((" ", "the"), [], plain)])
    assert found == without._loglikelihood_tokens([(("", "the"), [begin], plain)])[0]


def test_without_lm_eval_its_extra_is_named(tiny_corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)  # noqa: ARG005
    with pytest.raises(UsageError, match=r"--harness needs lm-eval, which is not installed: .*\[eval\]"):
        run_harness(engine(), WORLD, context(tiny_corpus), ["facts"], None)


def test_an_encoder_is_not_asked(tiny_corpus: Path) -> None:
    from dataclasses import replace

    own = context(tiny_corpus)
    encoder = replace(own, model=own.model.model_copy(update={"kind": "encoder"}))
    with pytest.raises(UsageError, match="lm-eval asks a decoder for texts, and this model is an encoder"):
        run_harness(engine(), WORLD, encoder, ["facts"], None)


@pytest.fixture
def lm_eval(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """In place of lm-eval: its `simple_evaluate` does as `evaluate` says."""

    def simple_evaluate(*_: Any, **settings: Any) -> dict[str, Any]:
        found.settings = settings
        return found.evaluate()

    found = SimpleNamespace(evaluate=dict, settings={}, simple_evaluate=simple_evaluate)
    found.TaskManager = lambda include_path: SimpleNamespace(all_tasks=["facts"])  # noqa: ARG005
    monkeypatch.setattr(harness, "_lm_eval", lambda name: found)  # noqa: ARG005
    monkeypatch.setattr(harness, "harness_model", lambda *_, **__: None)
    return found


def test_standard_errors_are_asked_for_and_stdout_stays_free(
    tiny_corpus: Path, lm_eval: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a bootstrap lm-eval gives no standard error, not even of a mean."""
    lm_eval.evaluate = lambda: print("bootstrapping for stddev") or {"results": {}}
    run_harness(engine(), WORLD, context(tiny_corpus), ["facts"], None)
    assert lm_eval.settings["bootstrap_iters"] > 0
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("error", [KeyError("question"), TemplateError("no x"), ValueError("no test split")])
def test_a_fault_of_a_task_file_is_told_as_one(
    tmp_path: Path, tiny_corpus: Path, lm_eval: SimpleNamespace, error: Exception
) -> None:
    def fail() -> None:
        raise error

    lm_eval.evaluate = fail
    with pytest.raises(UsageError, match=rf"task facts: lm-eval cannot run it \({type(error).__name__}: .*yaml"):
        run_harness(engine(), WORLD, context(tiny_corpus), ["facts"], tmp_path)
    with pytest.raises(UsageError, match=r"lm-eval has no task 'other', and .* has no yaml file that names it"):
        run_harness(engine(), WORLD, context(tiny_corpus), ["other"], tmp_path)
    with pytest.raises(UsageError, match=r"--include .*none: no such folder"):
        run_harness(engine(), WORLD, context(tiny_corpus), ["facts"], tmp_path / "none")


def test_a_fault_of_ours_is_not_told_as_one_of_the_task(tiny_corpus: Path, lm_eval: SimpleNamespace) -> None:
    none: Any = None
    lm_eval.evaluate = lambda: mean_and_error(none)
    with pytest.raises(TypeError, match="NoneType"):
        run_harness(engine(), WORLD, context(tiny_corpus), ["facts"], None)


@pytest.mark.slow
def test_a_task_of_a_local_file_runs(tmp_path: Path, launch_run: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """The command, with lm-eval where it is installed."""
    pytest.importorskip("lm_eval")
    import json

    from tests.evals.harness_tasks import TASKS, write_tasks

    texts = [
        " ".join(f"word{number * k % 97}" for number in range(60)) + ". One more. Another. And so on." for k in range(9)
    ]
    write_tasks(tmp_path, texts, 4)
    launch_run(tmp_path / "run", "model.position.length=512")
    capsys.readouterr()
    words = ["eval", str(tmp_path / "run"), "--include", str(tmp_path), "--json", "--harness"]
    assert main([*words, ",".join(TASKS)]) == 0
    found = json.loads(capsys.readouterr().out)["harness"]
    assert found.keys() == TASKS.keys()
    assert 0 <= found["next_word"]["acc"] <= 1
    assert all(each.keys() > {"acc", "acc_se"} for each in found.values() if "acc" in each)
    assert found["whole_pages"]["bits_per_byte"] > 1
    assert main([*words, "no_such_task"]) == 2
    assert "lm-eval has no task 'no_such_task'" in capsys.readouterr().err
