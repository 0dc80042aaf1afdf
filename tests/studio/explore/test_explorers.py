"""All explorers: the page, the JSON, the command line and Python have one answer, which is the engine's."""

import json
import os
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from hornbook.cli.main import main
from hornbook.errors import Exit
from hornbook.files.run_directory import RunDir
from hornbook.model.config.parameter_count import count_parameters
from hornbook.plan.planner import vocabulary
from hornbook.settings.resolve import resolve
from hornbook.settings.sources import split_words
from hornbook.studio.explore.explorer import Explorer, controls, explorer_names, load_explorer, value_text
from hornbook.studio.explore.page_answer import answered, describe, list_explorers, with_texts, words_of
from hornbook.studio.explore.recipes import recipe_of
from hornbook.studio.explore.text_views import answer_text
from hornbook.studio.explore.views import Bars, Curves, Facts, Table, Timeline, words
from hornbook.studio.live.app import Dashboard, build_app
from hornbook.studio.live.run_view import Runs

TOKEN = "token"
ROOT = Path(__file__).parents[3]
EXPLORERS = [load_explorer(name) for name in explorer_names()]
QUESTIONS = [
    pytest.param(explorer, values, id=f"{explorer.name}-{name}")
    for explorer in EXPLORERS
    for name, values in [("default", {}), *((preset.name, preset.values) for preset in explorer.presets)]
]


@pytest.fixture
def page(tmp_path_factory: pytest.TempPathFactory) -> TestClient:
    dashboard = Dashboard(Runs([tmp_path_factory.mktemp("runs")]), read_only=False)
    client = TestClient(build_app(dashboard, TOKEN), base_url="http://127.0.0.1:8765")
    client.get(f"/?token={TOKEN}")
    return client


@pytest.mark.parametrize(("explorer", "values"), QUESTIONS)
def test_page_command_line_and_python_agree(
    explorer: Explorer, values: dict[str, Any], page: TestClient, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = json.loads(json.dumps(with_texts(explorer(**values))))
    link = {name: value_text(value) for name, value in explorer.changed(explorer.ask(values)).items()}
    shown = page.get(f"/api/explore/{explorer.name}/answer", params=link).json()
    assert shown["answer"] == engine
    command = shlex.split(shown["command"])
    assert command[:3] == ["hornbook", "explore", explorer.name]
    _, settings = split_words(command[3:])
    assert explorer.ask(dict(each.split("=", 1) for each in settings)) == explorer.ask(values)
    assert main(["explore", explorer.name, *command[3:], "--json"]) == Exit.DONE
    assert json.loads(capsys.readouterr().out)["answer"] == engine


@pytest.mark.parametrize("explorer", EXPLORERS, ids=lambda each: each.name)
def test_text_of_a_terminal_has_every_number(explorer: Explorer) -> None:
    answer = explorer()
    text = answer_text(answer)
    for view in answer.views().values():
        assert view.title in text
        if isinstance(view, Facts):
            assert all(each.text in text for each in view.facts)
        if isinstance(view, Table):
            assert all(word in text for row in view.texts for word in row)
        if isinstance(view, Bars):
            assert all(words(each.total, view.unit) in text for each in view.bars)
        if isinstance(view, Curves):
            assert all(len(each.x) == len(each.y) > 0 for each in view.curves)
        if isinstance(view, Timeline):
            assert all(0 <= each.row < len(view.rows) and each.start <= each.end for each in view.spans)


@pytest.mark.parametrize(("explorer", "values"), QUESTIONS)
def test_settings_of_a_question_are_settings_of_a_recipe(explorer: Explorer, values: dict[str, Any]) -> None:
    question = explorer.ask(values)
    if explorer.settings is None:
        assert explorer.toml(question) == ""
        return
    model = getattr(question, "model", "tiny")
    assert recipe_of("tiny" if model == "even" else model, explorer.settings(question))
    assert tomllib.loads(explorer.toml(question))


@pytest.mark.parametrize("explorer", EXPLORERS, ids=lambda each: each.name)
def test_every_control_says_what_it_changes(explorer: Explorer) -> None:
    assert explorer.lead.endswith(".")
    assert explorer.asks.endswith("?")
    for control in controls(explorer):
        assert control.help.endswith("."), control.name
        if control.kind in ("integer", "number"):
            assert control.low is not None
            assert control.high is not None
            assert control.low <= control.default <= control.high
    for place in explorer.places():
        source = (ROOT / place["file"]).read_text().splitlines()
        assert place["name"] in source[place["line"] - 1] or source[place["line"] - 1].startswith("@")


@pytest.mark.parametrize("explorer", EXPLORERS, ids=lambda each: each.name)
def test_values_out_of_range_are_named_with_their_bound(explorer: Explorer, page: TestClient) -> None:
    number = next((each for each in controls(explorer) if each.kind in ("integer", "number")), None)
    if number is None:
        pytest.skip("it has no numbers")
    answer = page.get(f"/api/explore/{explorer.name}/answer", params={number.name: str(10 * (number.high or 1) + 1)})
    assert answer.status_code == 400
    assert answer.json()["error"].startswith(f"{number.name} = ")
    assert "less than or equal to" in answer.json()["error"]


def test_wrong_words_are_answered_with_the_nearest_right_one(capsys: pytest.CaptureFixture[str]) -> None:
    for words_, message in (
        (["pipelin"], "did you mean pipeline?"),
        (["pipeline", "--rank", "3"], "did you mean ranks?"),
        (["pipeline", "--ranks", "many"], "ranks = many: input should be a valid integer"),
        (["pipeline", "memory"], "name one explorer"),
        (["layouts", "--expert", "2"], "llama-3-8b has no experts; take mixtral-8x7b"),
        (["model-parallel", "--cuts", "9,3"], "rising numbers"),
        (["schedules", "--kinds", ""], "choose a schedule"),
        (["pipeline", "--real"], "measures nothing"),
        (["experts", "--active", "8", "--experts", "2"], "active = 8: a layer has 2 experts"),
        (["experts", "--model", "tiny"], "tiny has no experts; take mixtral-8x7b"),
        (["experts", "--ranks", "16"], "ranks = 16: a layer has 8 experts"),
    ):
        assert main(["explore", *words_]) == Exit.USAGE
        assert message in " ".join(capsys.readouterr().err.split())


def test_a_switch_needs_no_value(capsys: pytest.CaptureFixture[str]) -> None:
    for words_, expected in ((["--lora"], True), (["--no-lora"], False), (["--lora", "--gpus", "2"], True)):
        assert main(["explore", "memory", *words_, "--json"]) == Exit.DONE
        assert json.loads(capsys.readouterr().out)["question"]["lora"] is expected
    assert main(["explore", "pipeline", "--ranks"]) == Exit.USAGE
    assert "ranks = true: input should be a valid integer" in capsys.readouterr().err


def test_the_list_names_every_explorer(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explore"]) == Exit.DONE
    text = capsys.readouterr().out
    assert all(each["name"] in text and each["asks"] in text for each in list_explorers())


def test_the_page_lists_describes_and_refuses(page: TestClient) -> None:
    names = [each["name"] for each in page.get("/api/explore").json()["explorers"]]
    assert names == list(explorer_names())
    about = page.get("/api/explore/pipeline").json()
    assert [each["name"] for each in about["controls"]][:2] == ["schedule", "ranks"]
    assert about["has_further"]
    assert page.get("/api/explore/nothing").status_code == 400
    ours = {"x-hornbook": "1", "origin": "http://127.0.0.1:8765"}
    text = "ä" * 15_000
    found = page.post("/api/explore/tokenizers/answer", json={"text": text}, headers=ours).json()
    assert found["question"]["text"] == text
    for body, message in (
        ({"text": "x" * 250_000}, "200,000 bytes"),
        ([1], "JSON object"),
        ({"ranks": 3}, "no setting"),
    ):
        answer = page.post("/api/explore/tokenizers/answer", json=body, headers=ours)
        assert answer.status_code == 400
        assert message in answer.json()["error"]
    assert page.post("/api/explore/recompute/measure").status_code == 403  # without the header of the page
    further = page.get("/api/explore/pipeline/further", params={"schedule": "zbv"}).json()["answer"]
    assert further["schedules"]["rows"][further["schedules"]["chosen"]][0] == "zbv"


def test_words_of_a_page_are_explained_as_in_the_docs() -> None:
    rows = [line for line in (ROOT / "docs" / "words.md").read_text().splitlines() if line.startswith("| ")][1:]
    file = ROOT / "src" / "hornbook" / "studio" / "explore" / "words.txt"
    assert file.read_text().splitlines() == rows, f"grep '^| ' docs/words.md | tail -n +2 > {file.relative_to(ROOT)}"
    assert all(describe(explorer)["words"] for explorer in EXPLORERS)
    assert [*words_of("Two microbatches; a trunk, and MFU")] == ["MFU", "microbatch"]
    assert [*words_of("A pipeline schedule, and another schedule")] == ["pipeline", "pipeline schedule"]


def test_explorers_load_no_torch() -> None:
    code = (
        "import sys\n"
        "from hornbook.studio.explore.explorer import explorer_names, load_explorer\n"
        "for name in explorer_names():\n"
        "    each = load_explorer(name)\n"
        "    each()\n"
        "    each.further and each.further(each.question())\n"
        "    each.places()\n"
        "    assert 'torch' not in sys.modules, name\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_an_explorer_is_loaded_from_a_run(tmp_path: Path) -> None:
    """With its own model, whatever ranks it has itself."""
    run = RunDir(tmp_path).create()
    words_ = ["model.layers=6", "parallel.pipeline.stages=2", "parallel.tensor=2", "train.compile=false"]
    resolved = resolve("tiny-mixtral", words_, environ={})
    run.recipe.write_text(resolved.to_toml())
    run.metrics.touch()
    loads = {each.name: each.from_run(tmp_path) for each in EXPLORERS if each.loads}
    assert loads["pipeline"] == (
        {"model": str(tmp_path), "schedule": "1f1b", "ranks": 2, "chunks": 2, "microbatches": 1},
        [],
    )
    assert loads["layouts"][0] | {"pipeline": 2, "tensor": 2, "data": 1} == loads["layouts"][0]
    assert {name: left for name, (_, left) in loads.items() if left} == {"memory": ["precision = auto"]}
    loaded = {name: load_explorer(name)(**question) for name, (question, _) in loads.items()}
    assert {"memory", "layouts", "metrics", "schedules", "cleaning", "optimizer-memory"} <= loaded.keys()
    assert [row[1] for row in loaded["pipeline"].ranks.rows] == ["0-3", "4-5"]
    values = count_parameters(resolved.recipe.model, vocabulary(resolved.recipe))
    assert loaded["memory"].summary["parameters"] == values
    assert loaded["memory"].run is None
    sizes = {f"{how}_{unit}": 7.0 for how in ("predicted", "measured") for unit in ("bytes", "seconds")}
    run.events.write_text(json.dumps({"kind": "plan", **sizes}) + "\n")
    facts = load_explorer("memory")(model=str(tmp_path)).run.facts
    assert [each.value for each in facts] == [7.0] * 4


def test_a_recipe_that_changed_is_read_again(tmp_path: Path) -> None:
    stages, file = load_explorer("model-parallel"), tmp_path / "mine.toml"
    for layers in (4, 6):
        file.write_text(f'extends = "tiny"\n[model]\nlayers = {layers}\n')
        os.utime(file, (layers, layers))
        assert stages(model=str(file), devices=2).devices.rows[-1][1].endswith(f" to {layers - 1}")


def test_answered_keeps_the_question() -> None:
    found = answered(load_explorer("schedules"), {"kinds": "wsd,cosine", "tokens": "2B", "peak": "1e-3"})
    assert found["question"]["kinds"] == ["wsd", "cosine"]
    assert found["question"]["tokens"] == 2e9
    assert found["command"] == "hornbook explore schedules --kinds wsd,cosine --peak 0.001 --tokens 2000000000"
