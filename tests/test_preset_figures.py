"""Time and memory of the presets: every recipe has its line, and what was not measured says so."""

import json
from pathlib import Path

import pytest
import torch

from benchmarks import report
from benchmarks.training import presets
from hornbook.settings.recipe_files import shipped_recipes

DOCS = Path(__file__).parent.parent / "docs"


def test_every_recipe_has_a_line_on_the_page() -> None:
    found = json.loads((report.RESULTS / "presets.json").read_text())["presets"]
    assert set(found) == set(shipped_recipes())
    page = (DOCS / "figures.md").read_text()
    lines = {line.split(" | ")[0].removeprefix("| "): line for line in page.splitlines() if line.startswith("| ")}
    for name, each in found.items():
        assert each["parameters"] == presets.facts(name)["parameters"]
        assert ("estimated" in lines[name]) == ("rows" not in each)
        assert "rows" not in each or presets.is_measured(name, each)


def test_what_is_too_large_is_estimated_at_the_rate_of_the_largest_measured() -> None:
    small, large, huge = (
        {"parameters": count, "operations": 6.0 * count, "state_bytes": 16 * count, "sequence": 8, "row_bytes": None}
        for count in (10**6, 10**8, 10**10)
    )
    small |= {"rows": 2, "seconds": 50.0, "peak_bytes": 5 * 10**8, "share": 0.4}
    large |= {"rows": 1, "seconds": 2000.0, "peak_bytes": 25 * 10**8, "share": 0.99}
    found = {"small": small, "large": large, "huge": huge}
    presets.estimate(found)
    assert huge["seconds"] == pytest.approx(200_000)
    assert (small["seconds"], large["seconds"]) == (50.0, 2000.0)
    rows = presets.cells({"presets": found})
    assert [row[-1] for row in rows] == ["processor time", "", "estimated"]
    assert rows[1] == ("large", "100M", "33.3 min", 1.6, 2.5, "1 x 8", "", "")
    assert rows[2] == ("huge", "10B", "2.31 days", 160.0, "more than 160", "", "", "estimated")


@pytest.mark.parametrize("name", ["tiny", "tiny-bert", "tiny-t5", "tiny-bart", "tiny-classify"])
def test_each_kind_of_model_makes_its_step(name: str) -> None:
    recipe = presets.recipe_of(name)
    few, many = presets.row_counts(recipe.train.sequence, recipe.train.micro_batch)
    assert many == 2 * few
    batch = presets.make_batch(recipe, few, 100)
    assert batch.tokens.shape == batch.targets.shape == batch.weights.shape == batch.positions.shape
    assert 0 < float(batch.weights.sum()) <= batch.tokens.numel()
    assert (batch.source is not None) == (recipe.model.kind == "encoder_decoder")
    assert int(batch.targets.max()) < 100
    if name == "tiny-classify":
        assert torch.equal(batch.weights.sum(1), torch.ones(few))
