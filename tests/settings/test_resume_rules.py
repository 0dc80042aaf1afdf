"""The table of what may change on resume: complete, without dead rules, and readable."""

from fnmatch import fnmatchcase

import pytest

from hornbook.errors import Exit, UsageError
from hornbook.run.job.start.init_from import refuse_other_shape
from hornbook.settings.resolve import resolve
from hornbook.settings.resume_rules import RULES, refuse_incompatible, resume_changes, rule_of
from hornbook.settings.schema import settings

RAMPED = ("train.ramp=linear", "train.ramp.start_tokens=1024", "train.ramp.over_tokens=100k", "train.micro_batch=4")


def recipe(*words: str):
    return resolve("tiny", words, {}).recipe


@pytest.mark.parametrize("key", list(settings()))
def test_every_setting_has_a_rule(key: str) -> None:
    assert sum(fnmatchcase(key, glob) for glob, _, _ in RULES) >= 1
    assert rule_of(key) == next(rule for rule in RULES if fnmatchcase(key, rule[0]))


def test_every_rule_decides_something() -> None:
    assert {rule_of(key) for key in settings()} == set(RULES)


def test_globs_do_not_leave_their_section() -> None:
    sections = {key.split(".")[0] for key in settings()}
    assert all(glob.split(".")[0] in sections for glob, _, _ in RULES)


@pytest.mark.parametrize(
    ("word", "policy"),
    [
        ("name=x", "free"),
        ("log.every=3", "free"),
        ("checkpoint.keep=9", "free"),
        ("eval.every=9", "free"),
        ("eval.prompt=x", "free"),
        ("eval.tokens=9", "journaled"),
        ("guard.max_skips=1", "journaled"),
        ("optim.lr=1", "journaled"),
        ("optim.weight_decay=1", "journaled"),
        ("optim.clip.limit=2", "journaled"),
        ("optim.schedule.floor=0.5", "journaled"),
        ("train.tokens=2M", "journaled"),
        ("train.batch_tokens=8192", "journaled"),
        ("train.ramp.over_tokens=200k", "journaled"),
        ("train.micro_batch=2", "journaled"),
        ("train.precision=fp32", "journaled"),
        ("train.threads=1", "journaled"),
        ("train.compile=true", "journaled"),
        ("parallel.recompute.kind=selective", "journaled"),
        ("data.path=elsewhere", "journaled"),
        ("seed=9", "refused"),
        ("train.sequence=128", "refused"),
        ("data.order=sequential", "refused"),
        ("data.packing=best_fit", "refused"),
        ("data.document_mask=false", "refused"),
        ("data.weights.code=1", "refused"),
        ("model.width=512", "refused"),
        ("model.init.std=0.1", "refused"),
        ("text.tokenizer.vocab=5000", "refused"),
    ],
)
def test_policies(word: str, policy: str) -> None:
    old = RAMPED if "ramp" in word else ()
    (change,) = resume_changes(recipe(*old), recipe(*old, word))
    assert (change.key, change.policy) == (word.partition("=")[0], policy)


def test_no_change_no_record() -> None:
    assert resume_changes(recipe(), recipe()) == []


def test_another_kind_is_told_setting_by_setting() -> None:
    changes = {c.key: (c.old, c.new) for c in resume_changes(recipe(), recipe("optim.schedule=wsd"))}
    assert changes["optim.schedule.kind"] == ("cosine", "wsd")
    assert changes["optim.schedule.decay_share"] == (None, 0.2)
    assert changes["optim.schedule.floor"] == (0.1, 0.0)
    back = {c.key: (c.old, c.new) for c in resume_changes(recipe("optim.schedule=wsd"), recipe())}
    assert back["optim.schedule.decay_share"] == (0.2, None)


def test_the_refusal_names_values_and_the_way_out() -> None:
    with pytest.raises(UsageError) as caught:
        refuse_incompatible(resume_changes(recipe(), recipe("seed=2", "optim.lr=1", "data.order=sequential")))
    assert caught.value.exit_code == Exit.USAGE
    assert str(caught.value) == (
        "this run cannot go on with other settings\n"
        "  seed 1 -> 2 cannot change on resume: the seed decides the order of the data and every draw since the first "
        "step\n"
        '  data.order "shuffled" -> "sequential" cannot change on resume: '
        "every sample since the first would be another\n"
        "`hornbook fork RUN --out RUN2` starts a new run from these weights"
    )
    refuse_incompatible(resume_changes(recipe(), recipe("optim.lr=1", "log.every=3")))


@pytest.mark.parametrize("setting", ["model.width=512", "model.layers=3", "seed=2", "model.dropout=0.1"])
def test_a_fork_is_advised_only_where_it_is_possible(setting: str) -> None:
    old, new = recipe(), recipe(setting)
    with pytest.raises(UsageError) as caught:
        refuse_incompatible(resume_changes(old, new))
    try:
        refuse_other_shape(old, new)
    except UsageError:
        assert "hornbook fork" not in str(caught.value)
        assert "--from RUN" in str(caught.value)
    else:
        assert "`hornbook fork RUN --out RUN2`" in str(caught.value)
