"""Answers that do the work for real, in a child process with limits of time and memory."""

import os
import resource
import subprocess
import sys
from typing import Any

from pydantic import TypeAdapter

from hornbook.errors import Exit, HornbookError, UsageError
from hornbook.run.launch.rank import die_with
from hornbook.studio.explore.explorer import Explorer, load_explorer
from hornbook.studio.explore.views import Answer, AnyView

SECONDS = 120
MEMORY = 4 * 2**30
"""Bytes that a child may allocate (its data segment: what libraries map does not count)."""
NICE = 10
"""A run that trains on this machine comes first; a second thread would wait for a processor at each product."""
_VIEWS: TypeAdapter[list[Any]] = TypeAdapter(list[AnyView])


def measured(explorer: Explorer, question: Any) -> Answer:
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
    return Answer(**{str(number): view for number, view in enumerate(_VIEWS.validate_json(done.stdout))})


def main(name: str, text: str) -> bytes:
    """JSON of the views of a question's answer, made under the limits, in the child."""
    die_with(os.getppid())
    os.nice(NICE)
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    explorer = load_explorer(name)
    assert explorer.measure is not None
    answer = explorer.measure(explorer.question.model_validate_json(text))
    return _VIEWS.dump_json([*answer.views().values()])


if __name__ == "__main__":
    try:
        print(main(sys.argv[1], sys.stdin.read()).decode())
    except HornbookError as error:
        print(str(error).replace("\n", "; "), file=sys.stderr)
        sys.exit(Exit.USAGE)
