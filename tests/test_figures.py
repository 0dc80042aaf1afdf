"""Figures say where and when they were measured."""

from pathlib import Path

import pytest

from benchmarks import cpus, report

DOCS = Path(__file__).parent.parent / "docs"


@pytest.mark.parametrize("page", ["figures.md", "refinery-figures.md", "planner-figures.md"])
def test_every_section_begins_with_its_machine(page: str) -> None:
    sections = (DOCS / page).read_text().split("\n## ")[1:]
    assert sections
    assert all(section.split("\n")[2].startswith("Machine") for section in sections)


def test_what_was_not_recorded_is_said_to_be_missing() -> None:
    assert report.machine_line(None) == "Machine not recorded."
    line = report.machine_line({"processor": "A", "cores": 2, "threads": 1})
    assert line == "Machine: A; instruction set not recorded; cores: 2, threads: 1; date not recorded."


def test_results_with_avx2_alone_have_a_file_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "RESULTS", tmp_path)
    for name, value in cpus.AVX2.items():
        monkeypatch.setenv(name, value)
    assert report.write("none", {}).name == "none-avx2.json"
    assert "by variables of the environment" in (tmp_path / "none-avx2.json").read_text()
    monkeypatch.delenv("ATEN_CPU_CAPABILITY")
    assert report.write("none", {}).name == "none.json"
