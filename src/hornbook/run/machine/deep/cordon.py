"""The cordon list of a run, `cordon.json`: slots that failed a check, which ranks do not get for a while.

A slot that fails once is left out for a day; one that fails again within a day of its return, until a person puts it
back (`hornbook doctor RUN --uncordon`). Entries stay when they end: they say when each slot returned.
"""

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from hornbook.files.artifact import write_json
from hornbook.files.file_records import FileRecord, read_record
from hornbook.files.filesystem import exists
from hornbook.run.machine.deep.slots import SlotFault

SECONDS = 86_400.0
"""Time for which a slot is left out, and after its return within which a second failure leaves it out for good."""


class Cordon(FileRecord):
    """One slot that is left out."""

    slot: int
    test: str
    evidence: str
    since: float
    """Seconds since 1970."""
    until: float | None
    """The same, when it returns or has returned; None: until a person puts it back."""


class _CordonFile(FileRecord):
    """cordon.json."""

    cordoned: list[Cordon]


class CordonList:
    """The list of a run."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        self._path, self._clock = path, clock

    def entries(self) -> list[Cordon]:
        """All entries, expired ones too, oldest first. Raises IntegrityError where the file is damaged."""
        if not exists(self._path):
            return []
        return read_record(self._path, _CordonFile, "put back a copy, or delete it").cordoned

    def slots(self) -> set[int]:
        """Slots that are left out now."""
        now = self._clock()
        return {each.slot for each in self.entries() if _ends_after(each, now)}

    def add(self, faults: Sequence[SlotFault]) -> list[Cordon]:
        """Leave out the slots that failed; returns their entries. Raises StorageError."""
        there, now, new = self.entries(), self._clock(), dict[int, Cordon]()
        for fault in faults:
            again = any(each.slot == fault.slot and _ends_after(each, now - SECONDS) for each in there)
            until = None if again else now + SECONDS
            evidence = {"test": fault.test, "evidence": fault.evidence}
            new.setdefault(fault.slot, Cordon(slot=fault.slot, since=now, until=until, **evidence))
        self._write([*there, *new.values()])
        return list(new.values())

    def lift(self) -> list[Cordon]:
        """Put all slots back now; returns the entries that this ended. Raises StorageError."""
        there, now = self.entries(), self._clock()
        out = [each for each in there if _ends_after(each, now)]
        if out:
            self._write([each.model_copy(update={"until": now}) if each in out else each for each in there])
        return out

    def _write(self, entries: Sequence[Cordon]) -> None:
        write_json(self._path, {"cordoned": [each.model_dump() for each in entries]})


def _ends_after(entry: Cordon, moment: float) -> bool:
    """Whether an entry ends after a moment, in seconds since 1970, or not by itself."""
    return entry.until is None or entry.until > moment
