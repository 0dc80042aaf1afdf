"""Compile kernels on all cores at once, before they are needed.

numba compiles one kernel at a time in a process. So this process forks: each fork takes the next job, compiles, leaves
the kernel on disk (`kernels/cache`) and exits; whatever needs the kernel loads it. A fork that dies costs only time.
"""

import contextlib
import os
import select
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence

from hornbook.kernels import cache as kernel_cache
from hornbook.progress import without_bars

Job = Callable[[], object]
"""Something that uses a kernel, or compiles it otherwise."""
SECONDS_PER_JOB = 1.0
"""Compiling one takes about this long (docs/figures.md, "Cold and warm start")."""
_MANY = 250
_NOTICE = "compiling kernels (once)"


def compile_ahead(jobs: Sequence[Job]) -> None:
    """Do jobs, each of which compiles kernels, on all cores where this process can fork; the longest should come first.

    A notice goes to stderr.
    """
    jobs = list(jobs)[:_MANY]
    if not jobs:
        return
    kernel_cache.listeners.clear()  # this notice is enough
    with without_bars():  # a bar is drawn by a thread, and with threads nothing can be forked
        _compile(jobs)


def _compile(jobs: Sequence[Job]) -> None:
    queue, ended = os.pipe(), os.pipe()
    os.write(queue[1], bytes(range(len(jobs))))
    os.close(queue[1])
    children = [_fork(jobs, queue[0], ended) for _ in range(min(_processes(), len(jobs)) - 1)]
    with _notice(len(jobs)) as show:
        _work(jobs, queue[0], lambda: (os.write(ended[1], b"."), show(len(_arrived(ended[0], 0)))))
        os.close(ended[1])
        while arrived := _arrived(ended[0], None):
            show(len(arrived))
        for child in children:
            with contextlib.suppress(ChildProcessError):  # it was reaped already
                os.waitpid(child, 0)
    os.close(queue[0])
    os.close(ended[0])


def announce_late_compiling() -> None:
    """From now on one notice appears when kernels that were not compiled ahead have taken more than a second."""
    kernel_cache.listeners[:] = [_tell_late]


def _tell_late(name: str) -> None:
    del name
    if sum(kernel_cache.COMPILED.values()) > 1:
        kernel_cache.listeners.clear()
        _say(f"{_NOTICE}\n")


@contextlib.contextmanager
def _notice(total: int) -> Iterator[Callable[[int], None]]:
    """One line that says how many are done; on a terminal it changes and then goes away. Call it with how many more."""
    live, done = sys.stderr.isatty(), 0

    def show(more: int) -> None:
        nonlocal done
        done += more
        if live:
            _say(f"\r{_NOTICE}: {done} of {total}")

    if not live:
        seconds = SECONDS_PER_JOB * -(-total // min(_processes(), total))
        _say(f"{_NOTICE}: {total}, some {seconds:.0f} s\n")
    show(0)
    try:
        yield show
    finally:
        if live:
            _say("\r\x1b[K")


def _say(text: str) -> None:
    if not os.environ.get("HORNBOOK_QUIET"):
        with contextlib.suppress(OSError):
            sys.stderr.write(text)
            sys.stderr.flush()


def _processes() -> int:
    """How many processes may compile at once: threads of ours would not survive a fork with what they hold."""
    if sys.platform != "linux" or threading.active_count() > 1:
        return 1
    return len(os.sched_getaffinity(0))


def _fork(jobs: Sequence[Job], queue: int, ended: tuple[int, int]) -> int:
    """A process that takes part in the work and exits."""
    sys.stdout.flush()
    sys.stderr.flush()
    parent = os.getpid()
    with warnings.catch_warnings():  # threads of libraries are asleep here, and the fork calls none of them
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child:
        return child
    try:
        os.close(ended[0])
        _work(jobs, queue, lambda: os.write(ended[1], b".") if os.getppid() == parent else os._exit(0))
    finally:
        os._exit(0)


def _work(jobs: Sequence[Job], queue: int, tell: Callable[[], object]) -> None:
    while number := os.read(queue, 1):
        jobs[number[0]]()
        tell()


def _arrived(ended: int, timeout: float | None) -> bytes:
    """A byte per job that has ended since; empty at the timeout, or when all processes have exited."""
    readable = select.select([ended], [], [], timeout)[0]
    return os.read(ended, _MANY) if readable else b""
