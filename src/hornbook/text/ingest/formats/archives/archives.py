"""tar and zip files: every member is read as if it lay in a folder, and nothing is unpacked to disk.

Nothing is written, so a path that leads outside does no harm; it is refused all the same, since no honest archive has
one. An archive in an archive is not opened, which bounds bombs to one level, and that level is bounded by `Budget`.
"""

import posixpath
import re
from collections.abc import Iterable, Iterator

from hornbook.text.ingest.compressions import DamagedStream, Stream, decompressed
from hornbook.text.ingest.document import ReadOptions, Row, reject
from hornbook.text.ingest.formats.archives.tar import Member, tar_members
from hornbook.text.ingest.formats.archives.zip import ZipMember, zip_members
from hornbook.text.ingest.inputs import AT_RANDOM, InputFile, format_of, is_hidden
from hornbook.text.ingest.lines import Buffered, open_input
from hornbook.text.ingest.readers import read_stream

EXPANSION, FREE = 200, 2**28
"""An archive may expand to EXPANSION times its size, and to FREE bytes in any case."""
_ARCHIVES = ("tar", "zip", "arxiv")
_DRIVE = re.compile("[A-Za-z]:")
_ENDINGS = 32
"""Endings of members that are counted one by one."""
_PART = "!/"
"""Between the path of an archive and the name of a member."""


class Budget:
    """Counts the bytes that come out of an archive, over all members, and stops a bomb."""

    def __init__(self, size: int) -> None:
        self._limit, self._done = max(FREE, EXPANSION * size), 0

    def spend(self, size: int) -> None:
        """Raises DamagedStream beyond the limit."""
        self._done += size
        if self._done > self._limit:
            reason = f"it expands to more than {self._limit} bytes, the larger of {FREE} and {EXPANSION} times its size"
            raise DamagedStream(f"archive bomb: {reason}")


class Bounded:
    """A stream whose bytes are counted."""

    def __init__(self, stream: Stream, budget: Budget) -> None:
        self._stream, self._budget = stream, budget

    def read(self, size: int, /) -> bytes:
        """Raises DamagedStream where the budget is spent."""
        data = self._stream.read(size)
        self._budget.spend(len(data))
        return data


def read_tar(file: InputFile, raw: Stream, options: ReadOptions) -> Iterator[Row]:
    """The rows of all members, as they come."""
    stream = Buffered(Bounded(decompressed(raw, file.compression, counted=True), Budget(file.size)))
    return _rows(file, ((member, member) for member in tar_members(stream)), options)


def read_zip(file: InputFile, _: Stream, options: ReadOptions) -> Iterator[Row]:
    """The rows of all members, in the order of the directory. The file is read at random offsets."""
    budget = Budget(file.size)
    with open_input(file) as handle:

        def members() -> Iterator[tuple[ZipMember, Bounded]]:
            for member in zip_members(handle):
                yield member, Bounded(member, budget)
                budget.spend(0)  # after a bomb, of which its reader made a row, no member is read

        yield from _rows(file, members(), options)


def _rows(file: InputFile, members: Iterable[tuple[Member | ZipMember, Stream]], options: ReadOptions) -> Iterator[Row]:
    opened = rows = 0
    passed: dict[str, list[int]] = {}
    try:
        for member, stream in members:
            opened += 1
            if ending := _passed_over(member, options):
                tally = passed.setdefault(ending if len(passed) < _ENDINGS else "other endings", [0, 0])
                tally[0], tally[1] = tally[0] + 1, tally[1] + member.size
                continue
            for row in _member_rows(file, member, stream, options):
                rows += 1
                yield row
    except DamagedStream as error:
        rows += 1
        yield reject(file, opened, str(error))
    for ending, (count, size) in passed.items():
        yield reject(file, 0, f"not read in the archive: {ending}", size=size, rows=count, damaged=False)
    if not rows:
        yield reject(file, 0, "empty archive: it holds no file that can be read", damaged=False)


def _member_rows(file: InputFile, member: Member | ZipMember, stream: Stream, options: ReadOptions) -> Iterator[Row]:
    path = f"{file.path}{_PART}{member.name}"
    problem = _problem(member)
    known = format_of(member.name, options.layout)
    if member.kind == "folder":
        return
    inner = InputFile(file.source, path, member.size, "", *(known or ("text", None)))
    if problem or inner.format in _ARCHIVES:
        yield reject(inner, 0, problem or "archive in an archive: unpack it first")
    elif inner.format in AT_RANDOM:
        yield reject(inner, 0, f"{inner.format} in an archive: it is read at random places, so unpack it first")
    else:
        yield from read_stream(inner, stream, options)


def _passed_over(member: Member | ZipMember, options: ReadOptions) -> str:
    """Why a member is passed over, as in folders: `hidden`, or its ending; empty where it is read."""
    if member.kind == "folder" or _problem(member):
        return ""
    if is_hidden(member.name):
        return "hidden"
    ending = posixpath.splitext(member.name)[1].lower() or "without an ending"
    return "" if format_of(member.name, options.layout) else ending


def _problem(member: Member | ZipMember) -> str:
    parts = member.name.replace("\\", "/").split("/")
    if member.kind not in ("file", "folder"):
        return f"not a plain file in the archive: {member.kind}"
    if ".." in parts or not parts[0] or _DRIVE.fullmatch(parts[0]) or "\0" in member.name:
        return "unsafe name in the archive: it leads outside"
    return ""
