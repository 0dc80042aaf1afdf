"""A missing extra is installed from where hornbook came from: its name in an index may be anybody's."""

import json
import shlex
import sys
from pathlib import Path

import pytest

from hornbook.files import extras
from hornbook.files.extras import install_command

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"


def words(root: Path) -> list[str]:
    command = shlex.split(install_command("web", root))
    assert command[:4] == [sys.executable, "-m", "pip", "install"]
    return command[4:]


def test_from_a_clone_it_is_the_clone(tmp_path: Path) -> None:
    root = tmp_path / "my clone"
    (root / "src" / "hornbook").mkdir(parents=True)
    (root / "pyproject.toml").touch()
    assert words(root) == ["-e", f"{root}[web]"]


@pytest.mark.parametrize(
    ("source", "wanted"),
    [
        ({}, "hornbook[web]"),
        ({"url": "file:///a/b", "dir_info": {}}, "hornbook[web] @ file:///a/b"),
        (
            {"url": "https://x.org/h.git", "vcs_info": {"vcs": "git", "commit_id": "abc"}},
            "hornbook[web] @ git+https://x.org/h.git@abc",
        ),
        ({"url": "https://x.org/h.whl", "archive_info": {}}, "hornbook[web] @ https://x.org/h.whl"),
    ],
)
def test_else_it_is_what_pip_was_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: dict[str, object], wanted: str
) -> None:
    class Found:
        def read_text(self, name: str) -> str | None:
            assert name == "direct_url.json"
            return json.dumps(source) if source else None

    monkeypatch.setattr(extras.metadata, "distribution", lambda _: Found())
    assert words(tmp_path) == [wanted]


def test_without_metadata_nothing_breaks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> None:
        raise extras.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(extras.metadata, "distribution", absent)
    assert words(tmp_path) == ["hornbook[web]"]


def test_extras_are_those_that_something_imports() -> None:
    import tomllib

    offered = tomllib.loads(PYPROJECT.read_text())["project"]["optional-dependencies"]
    assert set(offered) == {
        "hf",
        "documents",
        "cloud",
        "lang",
        "scale",
        "track",
        "mlflow",
        "eval",
        "gguf",
        "onnx",
        "dev",
    }
