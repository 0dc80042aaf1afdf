"""What is said when a shard is truncated while it is mapped: the system ends whoever reads on (SIGBUS), without a word.

The handler runs in the thread that touched the missing page, so it may only look at the sizes of files and leave.
"""

import ctypes
import os
import signal
import weakref
from collections.abc import Iterable
from typing import Protocol

from hornbook.errors import Exit, IntegrityError

_MOST_NAMED = 3


class Sized(Protocol):
    """A mapped shard."""

    def check_sizes(self) -> None: ...


def truncated(shards: Iterable[Sized]) -> IntegrityError | None:
    """The error that names the shards whose files are shorter than what was mapped of them, if there are any."""
    problems = []
    for shard in shards:
        try:
            shard.check_sizes()
        except IntegrityError as error:
            problems.append(str(error))
    if not problems:
        return None
    more = f"\nand {len(problems) - _MOST_NAMED} more shards" if len(problems) > _MOST_NAMED else ""
    return IntegrityError("a file was changed while it was read:\n" + "\n".join(problems[:_MOST_NAMED]) + more)


_watched: "weakref.WeakSet[Sized]" = weakref.WeakSet()
_installed: list[object] = []


def watch(shards: Iterable[Sized]) -> None:
    """Have this process end with exit code 3 and a message, not by SIGBUS, when one of the shards is truncated."""
    _watched.update(shards)
    if _installed:
        return
    library = ctypes.CDLL(None)
    kind = ctypes.CFUNCTYPE(None, ctypes.c_int)

    @kind
    def tell(number: int) -> None:
        if (error := truncated(list(_watched))) is not None:
            os.write(2, f"error {error}\n".encode(errors="backslashreplace"))
            os._exit(Exit.INTEGRITY)
        library.signal(number, previous)  # something else: touched again, the page ends the process as before

    library.signal.restype, library.signal.argtypes = ctypes.c_void_p, (ctypes.c_int, ctypes.c_void_p)
    previous = library.signal(signal.SIGBUS, ctypes.cast(tell, ctypes.c_void_p))
    _installed.append(tell)
