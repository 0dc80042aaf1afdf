"""Problems of training and what helps: the rules and texts of `hornbook doctor RUN`."""

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from hornbook.errors import UsageError
from hornbook.run.doctor import curve_rules, deaths
from hornbook.run.doctor.curves import MIN_STEPS
from hornbook.settings.fields import Config
from hornbook.studio.explore.explorer import Preset, explorer
from hornbook.studio.explore.views import Answer, Fact, Facts, Passage, Passages, Table

CURVES, RECORDS = "curves of training", "end of a run"
TEXTS: Mapping[str, curve_rules.Text] = curve_rules.texts() | deaths.texts()
if TYPE_CHECKING:
    Symptom = str
else:
    Symptom = Literal[("all", *TEXTS)]
_SECTIONS = "checkpoint|data|eval|guard|log|model|optim|parallel|text|train"
_SETTING = re.compile(rf"\b(?:{_SECTIONS})\.(?!txt)[a-z0-9_]+(?:\.[a-z0-9_]+)*")


class ProblemsQuestion(Config):
    """Which problems to show."""

    symptom: Symptom = "all"
    """The problem, by its name in the report of the doctor (`hornbook doctor RUN --json`)."""
    about: Literal["all", "curves of training", "end of a run"] = "all"
    """Curves: problems that the doctor sees in losses, gradients and layers. End: problems that stop a run."""
    search: str = Field(default="", max_length=100)
    """Words that the text of a problem contains, such as `memory` or `optim.lr`."""


def _place(name: str) -> str:
    return CURVES if name in curve_rules.RULES else RECORDS


def _fitting(question: ProblemsQuestion) -> Iterator[str]:
    for name, text in TEXTS.items():
        words = f"{name} {text.title} {text.explanation} {text.remedy}".lower()
        is_chosen = question.symptom in ("all", name) and question.about in ("all", _place(name))
        if is_chosen and all(word in words for word in question.search.lower().split()):
            yield name


def _passage(name: str) -> Passage:
    """What the doctor looks for, what it means, what helps."""
    text, rule = TEXTS[name], curve_rules.RULES.get(name)
    doc = " ".join((rule.__doc__ or "").split()) if rule else ""
    parts = {"The doctor looks for": doc, "Meaning": text.explanation, "What helps": text.remedy}
    return Passage(name=text.title, text="\n".join(f"{head}: {part}" for head, part in parts.items() if part))


@explorer(
    "Problems and remedies",
    asks="What goes wrong in training, how does one see it, and what helps?",
    code=("run.doctor.curve_rules:judge", "run.doctor.deaths:examine", "run.doctor.deaths:classify"),
    presets=(
        Preset("The loss explodes", {"symptom": "exploding_gradients"}),
        Preset("The loss does not fall", {"symptom": "plateau"}),
        Preset("It works on the training text only", {"symptom": "overfitting"}),
        Preset("All that a lower learning rate helps against", {"search": "lower optim.lr"}),
    ),
)
def problems(question: ProblemsQuestion) -> Answer:
    """Most runs that fail do so in one of a few ways, and each of them leaves traces in the curves of the run or in its
    records. `hornbook doctor RUN` reads both and applies one rule for each problem. A rule reports a problem together
    with its evidence, and the text below says what it means and what to change."""
    names = [*_fitting(question)]
    if not names:
        hint = "choose symptom = all, about = all, or fewer words in search"
        raise UsageError(f"no problem fits symptom = {question.symptom}, search = {question.search!r}: {hint}")
    rows: list[list[Any]] = []
    for name in names:
        settings = dict.fromkeys(_SETTING.findall(TEXTS[name].remedy))
        rows.append([name, TEXTS[name].title, TEXTS[name].severity, _place(name), ", ".join(settings)])
    least = [
        Fact(name="steps before curves are judged", value=3 * MIN_STEPS, unit="count"),
        Fact(name="measurements of layers that must agree", value=curve_rules.MEASUREMENTS, unit="count"),
        Fact(name="largest attention logit", value=curve_rules.LOGIT_LIMIT),
        Fact(name="largest change of a layer in one step", value=curve_rules.UPDATE_LIMIT, unit="share"),
    ]
    return Answer(
        problems=Table(
            title="Problems",
            note="`fail` ends the command `hornbook doctor RUN` with an error, `warn` does not.",
            columns=dict.fromkeys(("symptom", "problem", "severity", "seen in", "settings that help")),
            rows=rows,
        ),
        remedies=Passages(title="What to look for and what to do", passages=[_passage(name) for name in names]),
        needed=Facts(title="Limits of the rules", facts=least),
    )
