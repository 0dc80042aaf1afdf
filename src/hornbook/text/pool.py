"""Run independent tasks on worker processes; results come in the order of the tasks.

Workers are spawned, not forked, so they inherit no threads and no locks; they end when their parent dies, however
it dies. With one worker the tasks run in this process.
"""

import atexit
import gc
import importlib
import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any, Literal, TypeVar

from hornbook.errors import HornbookError, UsageError
from hornbook.files.extras import install_command

Where = Literal["here", "ray"]
Task = TypeVar("Task")
Result = TypeVar("Result")


class WorkerDiedError(HornbookError):
    """A worker process was killed from outside (often by the system, for want of memory)."""


_DIED = (
    "a worker process was killed, perhaps by the system for want of memory; run the command again "
    "(finished tasks are kept), with fewer --workers if it happens again. A script of your own that starts workers "
    "needs `if __name__ == '__main__':` around its calls"
)


def choose_workers(requested: int, tasks: int) -> int:
    """How many processes: as requested, or one per core that this process may use; never more than tasks."""
    return max(1, min(requested or usable_cores(), tasks))


def usable_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _end_with_parent() -> None:
    """In a worker: exit as soon as the parent is gone, leave Ctrl-C to the parent, use one core only."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    atexit.register(gc.freeze)  # no garbage collection at exit
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def run_tasks(
    function: Callable[[Task], Result], tasks: Sequence[Task], workers: int, on: Where = "here"
) -> Iterator[Result]:
    """Yield `function(task)` for each task in order; the first error in that order is raised.

    `function` must be defined at module level. Few tasks are in flight at once, so results do not pile up.
    With `on` "ray" they run on the cluster that RAY_ADDRESS names (else a local one), which sees the same files.
    """
    if on == "ray":
        yield from _run_on_ray(function, tasks)
        return
    if workers <= 1:
        yield from map(function, tasks)
        return
    before = set(multiprocessing.active_children())
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context, initializer=_end_with_parent) as pool:
        try:
            yield from _in_order(tasks, lambda task: pool.submit(function, task), Future.result, 2 * workers)
        except BaseException as error:
            _stop(pool, set(multiprocessing.active_children()) - before)
            if isinstance(error, BrokenProcessPool):
                raise WorkerDiedError(_DIED) from error
            raise


def _in_order(
    tasks: Sequence[Task], submit: Callable[[Task], Any], result_of: Callable[[Any], Result], most: int
) -> Iterator[Result]:
    """Results in the order of the tasks, of which `most` are in flight at once."""
    waiting: deque[Any] = deque()
    for task in tasks:
        waiting.append(submit(task))
        if len(waiting) >= most:
            yield result_of(waiting.popleft())
    while waiting:
        yield result_of(waiting.popleft())


def _run_on_ray(function: Callable[[Task], Result], tasks: Sequence[Task]) -> Iterator[Result]:
    try:
        ray: Any = importlib.import_module("ray")
    except ImportError as error:
        raise UsageError(f"ray is not installed: {install_command('scale')}") from error
    if not ray.is_initialized():
        ray.init(address=os.environ.get("RAY_ADDRESS"), log_to_driver=False, include_dashboard=False)
    remote = ray.remote(num_cpus=1, max_retries=3)(function)
    slots = max(1, 2 * int(ray.cluster_resources().get("CPU", 1)))
    yield from _in_order(tasks, remote.remote, lambda reference: _ray_result(ray, reference), slots)


def _ray_result(ray: Any, reference: Any) -> Any:
    """The task's result; its own error instead of ray's wrapping."""
    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        raise error.cause from None


def _stop(pool: ProcessPoolExecutor, workers: set[Any]) -> None:
    """Stop the tasks that are running: no one waits for them, and a half-written file has no name yet."""
    pool.shutdown(wait=False, cancel_futures=True)
    for worker in workers:
        worker.terminate()
