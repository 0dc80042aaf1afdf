"""A fresh process that measures, `python -m hornbook.run.diagnose.bench.worker`: a request in, a result out, as JSON.

It forks the ranks of a recipe itself, so the process that asks need not be able to; a device and its memory are as a
run would find them.
"""

import functools
import importlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import hornbook.errors
from hornbook.errors import DoesNotFitError, Exit, HornbookError
from hornbook.settings.recipe import Recipe

MEASURES = "hornbook.run.diagnose.bench.measures"


def measure(what: str, recipe: Recipe, **more: Any) -> dict[str, Any]:
    """The result of the function `what` of `measures.py` in a fresh process. Raises its HornbookError here."""
    request = {"what": what, "recipe": recipe.model_dump(mode="json"), **more}
    with tempfile.TemporaryDirectory(prefix="hornbook-") as folder:
        answer = Path(folder) / "answer.json"
        command = [sys.executable, "-m", __name__, str(answer)]
        done = subprocess.run(command, input=json.dumps(request), text=True, check=False, stdout=subprocess.DEVNULL)
        found = json.loads(answer.read_text()) if answer.exists() else {}
    if "error" in found:
        raise getattr(hornbook.errors, found["error"], HornbookError)(found["text"])
    if done.returncode < 0:
        raise DoesNotFitError(f"the measuring process was ended by signal {-done.returncode}, as when memory runs out")
    if done.returncode or not found:
        raise HornbookError(f"the measuring process ended with exit code {done.returncode}; its lines are above")
    return found


def main(answer: Path) -> int:
    """Measure what the request on stdin asks for, and write the answer; a HornbookError is an answer too."""
    request = json.load(sys.stdin)
    recipe = Recipe.model_validate(request.pop("recipe"))
    function = getattr(importlib.import_module(MEASURES), request.pop("what"))
    try:
        found = function(recipe, **request)
    except HornbookError as error:
        found = _as_answer(error)
    except RuntimeError as error:  # torch's OutOfMemoryError is one
        if "memory" not in str(error):
            raise
        found = _as_answer(DoesNotFitError(f"out of memory: {str(error).splitlines()[0]}"))
    answer.write_text(json.dumps(found))
    return Exit.DONE


def _as_answer(error: HornbookError) -> dict[str, str]:
    return {"error": type(error).__name__, "text": str(error)}


def on_ranks(size: int, function: Any, *arguments: Any) -> Any:
    """`function(*arguments, rank_info)` on `size` forked ranks; returns rank 0's JSON result. This process has no
    threads."""
    from torch.distributed import FileStore  # pyright: ignore[reportPrivateImportUsage]

    from hornbook.parallel.world import RankInfo

    with tempfile.TemporaryDirectory(prefix="hornbook-") as folder:
        connect = functools.partial(FileStore, f"{folder}/store", size)
        infos = [RankInfo(rank, size, rank, connect, same_devices=True) for rank in range(size)]
        pids = [
            _fork(functools.partial(function, *arguments, info), Path(folder) / f"{info.rank}.json") for info in infos
        ]
        codes = _reap(pids)
        answers = [json.loads(path.read_text()) for path in sorted(Path(folder).glob("*.json"))]
    failed = [each for each in answers if isinstance(each, dict) and "error" in each]
    if failed:
        raise getattr(hornbook.errors, failed[0]["error"], HornbookError)(failed[0]["text"])
    if any(codes) or not answers:
        raise HornbookError(f"the ranks ended with {codes}; their lines are above")
    return answers[0]


def _fork(act: Any, answer: Path) -> int:
    """Start one rank; returns its process id."""
    from hornbook.run.launch.rank import die_with

    parent = os.getpid()
    if pid := os.fork():
        return pid
    code = 1
    try:
        die_with(parent)
        try:
            answer.write_text(json.dumps(act()))
        except HornbookError as error:
            answer.write_text(json.dumps(_as_answer(error)))
            raise
        code = 0
    except BaseException:  # noqa: BLE001 - the process ends here
        if not answer.exists() and not isinstance(sys.exception(), KeyboardInterrupt):
            sys.excepthook(*sys.exc_info())  # pyright: ignore[reportArgumentType]
        sys.stderr.flush()
    finally:
        os._exit(code)


def _reap(pids: list[int]) -> list[int]:
    """Exit codes of the ranks; when one fails, the others are ended."""
    codes: dict[int, int] = {}
    while len(codes) < len(pids):
        pid, status = os.wait()
        if pid not in pids:
            continue
        codes[pid] = os.waitstatus_to_exitcode(status)
        if codes[pid]:
            for other in pids:
                if other not in codes:
                    os.kill(other, 9)
    return [codes[pid] for pid in pids]


if __name__ == "__main__":
    try:
        sys.exit(main(Path(sys.argv[1])))
    except KeyboardInterrupt:  # the command that asked says so
        sys.exit(Exit.INTERRUPTED)
