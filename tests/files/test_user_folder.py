"""Where hornbook keeps what is a user's own."""

from pathlib import Path

import pytest

from hornbook.files.user_folder import user_folder


@pytest.mark.parametrize(
    ("environ", "cached", "lasting"),
    [
        ({"HORNBOOK_HOME": "/h", "XDG_CACHE_HOME": "/c", "XDG_STATE_HOME": "/s"}, "/h/x", "/h/x"),
        ({"XDG_CACHE_HOME": "/c", "XDG_STATE_HOME": "/s"}, "/c/hornbook/x", "/s/hornbook/x"),
        ({"XDG_CACHE_HOME": ""}, "/me/.cache/hornbook/x", "/me/.local/state/hornbook/x"),
    ],
)
def test_the_environment_names_it(
    monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], cached: str, lasting: str
) -> None:
    monkeypatch.setattr(Path, "home", lambda: Path("/me"))
    assert (user_folder("x", environ), user_folder("x", environ, lasting=True)) == (Path(cached), Path(lasting))


def test_a_user_without_a_home_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", homeless)
    assert user_folder("x", {}) is None
    assert user_folder("x", {"XDG_CACHE_HOME": "/c"}) == Path("/c/hornbook/x")
