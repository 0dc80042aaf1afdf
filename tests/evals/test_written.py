"""BLEU, chrF and ROUGE of texts: those of sacrebleu and rouge-score, which are named where they are absent."""

import sys

import pytest

from hornbook.errors import UsageError
from hornbook.evals import written
from hornbook.evals.config import Summarization, Translation, WrittenFile

FOUND = ["The cat sat on the mat.", "It is raining heavily today,", "Hello"]
RIGHT = ["The cat is sitting on the mat.", "It is raining hard today.", "Goodbye, world"]


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
    values, overall = written.scores(config, FOUND, RIGHT)
    assert overall["bleu"] == sacrebleu.corpus_bleu(FOUND, [RIGHT]).score
    assert overall["chrf"] == sacrebleu.corpus_chrf(FOUND, [RIGHT], word_order=words).score
    assert overall["bleu_signature"] == f"nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:{sacrebleu.__version__}"
    assert values["chrf_sentence"].tolist() == [
        sacrebleu.sentence_chrf(ours, [theirs], word_order=words).score
        for ours, theirs in zip(FOUND, RIGHT, strict=True)
    ]
    assert overall["bleu"] != written.scores(config.model_copy(update={"tokenize": "char"}), FOUND, RIGHT)[1]["bleu"]


def test_summaries_have_the_figures_of_rouge_score() -> None:
    scorer = pytest.importorskip("rouge_score.rouge_scorer")
    kinds = ["rouge1", "rouge2", "rougeL", "rougeLsum"]
    for stem in (True, False):
        values, overall = written.scores(Summarization(path="x", stem=stem), FOUND, RIGHT)
        rows = [scorer.RougeScorer(kinds, stem).score(a, b) for a, b in zip(RIGHT, FOUND, strict=True)]
        assert {name: each.tolist() for name, each in values.items()} == {
            name: [row[name].fmeasure for row in rows] for name in kinds
        }
        assert overall == {}
    one, _ = written.scores(Summarization(path="x"), ["the cats sat"], ["a cat sat down"])
    assert one["rouge1"][0] == pytest.approx(4 / 7), "cats and cat have one stem"
