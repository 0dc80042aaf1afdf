"""BLEU, chrF and ROUGE of texts: those of sacrebleu and rouge-score, which are named where they are absent."""

import sys

import numpy as np
import pytest

from hornbook.errors import UsageError
from hornbook.evals import written
from hornbook.evals.compare import compare
from hornbook.evals.config import Summarization, Translation, WrittenFile
from hornbook.evals.evaluate import Report
from hornbook.evals.items import ItemScores
from hornbook.evals.loss import LossScores

FOUND = ["The cat sat on the mat.", "It is raining heavily today,", "Hello"]
WORDS = [f"word{number}" for number in range(40)]
PLAIN = LossScores(1.0, 1, 1, np.ones((2, 4)))
RIGHT = ["The cat is sitting on the mat.", "It is raining hard today.", "Goodbye, world"]
ONE_EACH = [[text] for text in RIGHT]
SEVERAL = [[RIGHT[0], "A cat sat on the mat."], [RIGHT[1]], [RIGHT[2], "Hello, world", "Hello"]]


@pytest.mark.parametrize("config", [Translation(path="x"), Summarization(path="x")])
def test_a_package_that_is_absent_is_named(config: WrittenFile, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("sacrebleu.metrics", "rouge_score.rouge_scorer"):
        monkeypatch.setitem(sys.modules, module, None)
    package = "sacrebleu" if isinstance(config, Translation) else "rouge-score"
    with pytest.raises(UsageError, match=rf"eval.tasks, \w+: {package} computes its figures .*pip install .*\[eval\]"):
        written.check(config)


@pytest.mark.parametrize("words", [0, 2])
def test_translations_have_the_figures_of_sacrebleu(words: int) -> None:
    sacrebleu = pytest.importorskip("sacrebleu")
    config = Translation.model_validate({"path": "x", "chrf_words": words})
    values, overall, signatures = written.scores(config, FOUND, ONE_EACH)
    assert overall["bleu"].value == sacrebleu.corpus_bleu(FOUND, [RIGHT]).score
    assert overall["chrf"].value == sacrebleu.corpus_chrf(FOUND, [RIGHT], word_order=words).score
    assert (
        signatures["bleu_signature"] == f"nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:{sacrebleu.__version__}"
    )
    assert values["chrf_sentence"].tolist() == [
        sacrebleu.sentence_chrf(ours, [theirs], word_order=words).score
        for ours, theirs in zip(FOUND, RIGHT, strict=True)
    ]
    other = written.scores(config.model_copy(update={"tokenize": "char"}), FOUND, ONE_EACH)[1]["bleu"]
    assert overall["bleu"].value != other.value


def test_errors_of_bleu_and_their_differences_are_those_of_samples() -> None:
    """Beside sacrebleu's own bootstrap, which draws other samples."""
    bleu = pytest.importorskip("sacrebleu.metrics").BLEU()
    draw = np.random.default_rng(0)
    right = [" ".join(draw.choice(WORDS, 12)) for _ in range(80)]
    worse, better = ([_changed(draw, text, rate) for text in right] for rate in (0.3, 0.15))
    scores = []
    for texts in (worse, better):
        values, overall, signatures = written.scores(Translation(path="x"), texts, [[each] for each in right])
        scores.append(ItemScores(values, "same", overall=overall, signatures=signatures))
    theirs = bleu.corpus_score(worse, [right], n_bootstrap=1000)
    assert scores[0].as_dict()["bleu_se"] == pytest.approx(theirs._ci / 1.96, rel=0.15)
    found = compare(*(Report({"x": PLAIN}, {}, {"t": each}) for each in scores))["tasks"]["t"]["bleu"]
    assert found["first"] == bleu.corpus_score(worse, [right]).score
    assert found["low"] < found["difference"] < found["high"] < 0
    same = compare(*(Report({"x": PLAIN}, {}, {"t": scores[0]}),) * 2)["tasks"]["t"]["bleu"]
    assert same["difference"] == same["se"] == 0


def _changed(draw: np.random.Generator, text: str, rate: float) -> str:
    return " ".join(str(draw.choice(WORDS)) if draw.random() < rate else word for word in text.split())


def test_summaries_have_the_figures_of_rouge_score() -> None:
    scorer = pytest.importorskip("rouge_score.rouge_scorer")
    kinds = ["rouge1", "rouge2", "rougeL", "rougeLsum"]
    for stem in (True, False):
        values, *overall = written.scores(Summarization(path="x", stem=stem), FOUND, ONE_EACH)
        rows = [scorer.RougeScorer(kinds, stem).score(a, b) for a, b in zip(RIGHT, FOUND, strict=True)]
        assert {name: each.tolist() for name, each in values.items()} == {
            name: [row[name].fmeasure for row in rows] for name in kinds
        }
        assert overall == [{}, {}]
    one, *_ = written.scores(Summarization(path="x"), ["the cats sat"], [["a cat sat down"]])
    assert one["rouge1"][0] == pytest.approx(4 / 7), "cats and cat have one stem"


@pytest.mark.parametrize("words", [0, 2])
def test_translations_may_have_any_number_of_references(words: int) -> None:
    sacrebleu = pytest.importorskip("sacrebleu")
    config = Translation.model_validate({"path": "x", "chrf_words": words})
    values, overall, signatures = written.scores(config, FOUND, SEVERAL)
    streams = [list(RIGHT), [SEVERAL[0][1], None, SEVERAL[2][1]], [None, None, SEVERAL[2][2]]]
    assert overall["bleu"].value == sacrebleu.corpus_bleu(FOUND, streams).score
    assert overall["chrf"].value == sacrebleu.corpus_chrf(FOUND, streams, word_order=words).score
    assert signatures["bleu_signature"].startswith("nrefs:var|")
    assert signatures["chrf_signature"].startswith("nrefs:var|")
    assert values["chrf_sentence"].tolist() == [
        max(sacrebleu.sentence_chrf(ours, [each], word_order=words).score for each in theirs)
        for ours, theirs in zip(FOUND, SEVERAL, strict=True)
    ]
    twice = written.scores(config, FOUND[:2], [[*each, "Not this."] for each in SEVERAL[:2]])
    assert twice[1]["bleu"].value > written.scores(config, FOUND[:2], ONE_EACH[:2])[1]["bleu"].value
    same = written.scores(config, FOUND, [[text, text] for text in RIGHT])
    assert same[1]["bleu"].value == written.scores(config, FOUND, ONE_EACH)[1]["bleu"].value
    assert same[2]["bleu_signature"].startswith("nrefs:2|")


def test_summaries_have_the_best_of_their_references() -> None:
    scorer = pytest.importorskip("rouge_score.rouge_scorer").RougeScorer([*written.ROUGE], use_stemmer=True)
    values, *_ = written.scores(Summarization(path="x"), FOUND, SEVERAL)
    for name in written.ROUGE:
        rows = [scorer.score_multi(theirs, ours)[name].fmeasure for ours, theirs in zip(FOUND, SEVERAL, strict=True)]
        assert values[name].tolist() == rows
        assert rows[2] == max(scorer.score(each, FOUND[2])[name].fmeasure for each in SEVERAL[2])
