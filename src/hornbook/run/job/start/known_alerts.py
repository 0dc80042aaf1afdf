"""Alerts that reach out of a run's folder: those of a run that somebody else made are refused.

A command line, the environment and a recipe that a person names are trusted. A resume and a fork take other settings
from the files of a run, which anybody may have written. So each start keeps, in a folder of this user outside of all
runs, a digest of each command, address and outer file that it alerts (`$HORNBOOK_HOME/alerts`, else
`$XDG_STATE_HOME/hornbook/alerts`, `~/.local/state/hornbook/alerts`); of a run's files only these are taken.
"""

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path

from hornbook.errors import UsageError
from hornbook.files.run_directory import RunDir
from hornbook.files.user_folder import user_folder
from hornbook.settings.fields import TRUST
from hornbook.settings.resolve import Resolved
from hornbook.settings.show import toml_value
from hornbook.settings.sources import COMMAND_LINE
from hornbook.settings.training import AlertConfig, CommandAlert, FileAlert, WebhookAlert

KEY = "log.alerts"
_TYPED = re.compile(rf"{COMMAND_LINE}|environment HORNBOOK\w*")
"""Origins of what a person gave; that of a file ends in its line."""


def refuse_unknown_alerts(resolved: Resolved, run: RunDir, environ: Mapping[str, str] = os.environ) -> None:
    """Raise UsageError if settings that come from the files of a run name an alert that this user never started.

    run: the one that is to be trained.
    """
    origin = resolved.origins.get(KEY, "default")
    if _TYPED.fullmatch(origin) or environ.get(TRUST) == "1":
        return
    for alert in resolved.recipe.log.alerts:
        target = _target(alert, run)
        if target and not _is_known(target, environ):
            what = toml_value(alert.model_dump(include={"kind", "argv", "url", "path"}))
            raise UsageError(
                f"{KEY} ({origin}) names {what}, which reaches out of the run's folder, and no run of yours with it "
                f"has started here: if you trust it, set {TRUST}=1 or give it again as --{KEY} '[...]'; "
                f"--{KEY} '[]' goes on without alerts"
            )


def keep_alerts(resolved: Resolved, run: RunDir, environ: Mapping[str, str] = os.environ) -> None:
    """Remember the alerts of a run that this user starts. Where nothing can be kept, a resume asks for them again."""
    for alert in resolved.recipe.log.alerts:
        if (target := _target(alert, run)) and not _is_known(target, environ):
            with contextlib.suppress(OSError):
                path = _path(target, environ)
                path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                path.touch(mode=0o600)


def _target(alert: AlertConfig, run: RunDir) -> list[str]:
    """What an alert reaches outside of the run's folder; empty where it is nothing."""
    if isinstance(alert, CommandAlert):
        program = alert.argv[0]
        return ["command", os.path.abspath(program) if os.sep in program else program, *alert.argv[1:]]
    if isinstance(alert, WebhookAlert):
        return ["webhook", alert.url]
    if isinstance(alert, FileAlert):
        path = (run.path / alert.path).resolve()
        return [] if path.is_relative_to(run.path.resolve()) else ["file", str(path)]
    return []


def _is_known(target: list[str], environ: Mapping[str, str]) -> bool:
    try:
        return _path(target, environ).stat().st_uid == os.getuid()
    except OSError:
        return False


def _path(target: list[str], environ: Mapping[str, str]) -> Path:
    """Raises FileNotFoundError where the user has no home."""
    folder = user_folder("alerts", environ, lasting=True)
    if folder is None:
        raise FileNotFoundError("there is no home")
    return folder / hashlib.sha256(json.dumps(target).encode()).hexdigest()
