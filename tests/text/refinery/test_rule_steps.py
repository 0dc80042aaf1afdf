"""The rules as steps of a recipe, from files to reasons."""

from hornbook.text.config.rules import C4Config, FineWebConfig, GopherQualityConfig, GopherRepetitionConfig
from hornbook.text.config.step import EditConfig
from hornbook.text.config.text import TextConfig
from hornbook.text.refinery.quality.rules import C4Lines
from hornbook.text.refinery.step import build
from tests.text.refinery.running import columns_of, judge

RULES = ("gopher_quality", "gopher_repetition", "c4", "mc4", "fineweb")
PROSE = "The men of the town and the women that have children went to be with them in the hills."
PAGE = "\n".join(PROSE.replace("town", f"town {number}").replace("hills", f"hills {number}") for number in range(16))


def test_each_document_falls_to_the_first_rule_it_breaks() -> None:
    texts = [PAGE.replace("children", "dogs"), "Too short.", "the same line of words\n" * 40, PAGE + "{", PAGE]
    quality, repetition = GopherQualityConfig(), GopherRepetitionConfig(max_duplicate_5_grams=None, max_top_2_gram=0.9)
    off = {f"max_duplicate_{n}_grams": None for n in range(6, 11)}
    steps = [quality, repetition.model_copy(update=off), C4Config(), FineWebConfig(max_short_lines=0.5)]
    reasons, _ = judge(steps, texts[:2], texts[2:])
    assert reasons[0] == reasons[4] == "kept"
    assert reasons[1:4] == ["Gopher: too few words", "Gopher: repeated lines", "C4: curly bracket"]


def test_one_pass_serves_all_rules() -> None:
    steps = TextConfig.model_validate({"steps": [{"kind": kind} for kind in RULES]}).steps
    assert [measurer.name for measurer in build(steps).measurers] == ["statistics"]
    assert set(build(steps).decisions[0].needs) <= set(columns_of(steps[0], [PAGE]))


def test_line_rules_are_an_edit() -> None:
    (step,) = TextConfig.model_validate({"steps": [{"kind": "c4_lines"}]}).steps
    assert isinstance(step, EditConfig)
    assert isinstance(step.build(), C4Lines)
