"""No default, type or range of a setting changes unless it is meant to: tests/settings/settings.txt has them all."""

from tests.settings import pinned


def test_settings_are_those_on_file() -> None:
    kept = pinned.FILE.read_text(encoding="utf-8").splitlines()
    found = list(pinned.lines())
    assert {*found} ^ {*kept} == set(), "if this is meant: python -m tests.settings.pinned"
    assert found == kept
