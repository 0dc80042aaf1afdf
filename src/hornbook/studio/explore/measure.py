"""Answers that do the work for real, in a child process with limits of time and memory."""

import json
import os
import resource
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from hornbook.errors import Exit, HornbookError, UsageError
from hornbook.run.launch.rank import die_with
from hornbook.studio.explore.explorer import Explorer, load_explorer
from hornbook.studio.explore.views import Answer, AnyView, View

SECONDS = 120
MEMORY = 4 * 2**30
"""Bytes that a child may allocate (its data segment: what libraries map does not count)."""
NICE = 10
"""A run that trains on this machine comes first; a second thread would wait for a processor at each product."""


class Measured(Answer):
    """The views that a child process returned."""

    shown: Sequence[AnyView]

    def views(self) -> dict[str, View]:
        """In their order."""
        return {str(number): view for number, view in enumerate(self.shown)}


def measured(explorer: Explorer[Any, Any], question: Any) -> Measured:
    """The views that `explorer.measure` returns. Raises UsageError, and HornbookError where the child failed."""
    if explorer.measure is None:
        raise UsageError(f"{explorer.name} measures nothing: it is arithmetic alone")
    words, environment = [sys.executable, "-m", __name__, explorer.name], os.environ | {"OMP_NUM_THREADS": "1"}
    given = question.model_dump_json()
    try:
        done = subprocess.run(
            words, input=given, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise HornbookError(f"it took more than {SECONDS} seconds and was ended: take smaller values") from None
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise HornbookError(f"it ended with an error: {last[:500]}")
    return Measured.model_validate_json(done.stdout)


def main(name: str, text: str) -> Mapping[str, Any]:
    """Answer a question under the limits, in the child."""
    die_with(os.getppid())
    os.nice(NICE)
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    explorer = load_explorer(name)
    assert explorer.measure is not None
    answer = explorer.measure(explorer.question.model_validate_json(text))
    return Measured.model_validate({"shown": list(answer.views().values())}).model_dump(mode="json")


if __name__ == "__main__":
    try:
        print(json.dumps(main(sys.argv[1], sys.stdin.read())))
    except HornbookError as error:
        print(str(error).replace("\n", "; "), file=sys.stderr)
        sys.exit(Exit.USAGE)
