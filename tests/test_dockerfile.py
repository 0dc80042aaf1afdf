"""The Dockerfile, which no test can build: its copies exist, its pins are those of the package, it runs as a user."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "Dockerfile").read_text(encoding="utf-8")
STEPS = [
    line.split(maxsplit=1)
    for line in re.sub(r"\\\n", "", TEXT).splitlines()
    if line.strip() and not line.startswith("#")
]
"""Instruction and arguments of each step."""
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
KEPT = [line[1:] for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines() if line.startswith("!")]


def arguments(instruction: str) -> list[str]:
    return [rest for name, rest in STEPS if name == instruction]


def default(name: str) -> str:
    (value,) = [each.partition("=")[2].strip('"') for each in arguments("ARG") if each.startswith(f"{name}=")]
    return value


def copied() -> list[str]:
    return [source for each in arguments("COPY") if not each.startswith("--from") for source in each.split()[:-1]]


def test_every_copied_file_exists_and_is_sent_to_the_builder() -> None:
    assert all((ROOT / source).exists() for source in copied())
    assert sorted(copied()) == sorted(KEPT)


def test_the_copied_files_are_those_that_the_package_is_built_from() -> None:
    assert {"src", "pyproject.toml", PROJECT["readme"], *PROJECT["license-files"]} <= set(copied())


def test_the_base_has_a_python_of_the_package() -> None:
    name, _, tag = default("BASE").partition(":")
    version = tag.partition("-")[0]
    assert name == "python"
    assert SpecifierSet(PROJECT["requires-python"]).contains(version)
    assert f"Programming Language :: Python :: {version}" in PROJECT["classifiers"]


def test_pip_installs_the_versions_that_the_tests_passed_with() -> None:
    calls = [call for step in arguments("RUN") for call in step.split("&&") if "pip install" in call]
    assert len(calls) == 2
    assert all("-c constraints.txt" in call for call in calls)
    pins = dict(re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE))
    pins = {name.lower().replace("_", "-"): version for name, version in pins.items()}
    extras = [each for name in default("EXTRAS").split(",") for each in PROJECT["optional-dependencies"][name]]
    for text in [*PROJECT["dependencies"], *extras]:
        requirement = Requirement(text)
        assert requirement.specifier.contains(pins[requirement.name.lower().replace("_", "-")]), text


def test_the_container_runs_as_a_user_without_a_network() -> None:
    last = max(number for number, (name, _) in enumerate(STEPS) if name == "FROM")
    after = [name for name, _ in STEPS[last:]]
    assert arguments("USER") == ["${USER_ID}"]
    assert int(default("USER_ID")) > 0
    assert after.index("USER") > max(number for number, name in enumerate(after) if name in ("RUN", "COPY"))
    assert not arguments("ADD")
    assert "pip" not in " ".join(arguments("CMD") + arguments("ENTRYPOINT"))


@pytest.mark.parametrize("step", arguments("RUN"))
def test_the_shell_parses_every_step(step: str) -> None:
    subprocess.run(["sh", "-n", "-c", step], check=True)


def test_arguments_are_declared_in_the_stage_that_uses_them() -> None:
    """A stage sees only its own: outside of them `$NAME` is empty, and the build goes wrong in silence."""
    known, seen = {"PATH"}, set[str]()
    for name, rest in STEPS:
        if name == "FROM":
            seen = set(known) | {"BASE"}
        elif name == "ARG":
            seen.add(rest.partition("=")[0])
        used = set(re.findall(r"\$\{?([A-Z_]+)", rest))
        assert used <= seen, (name, rest)
