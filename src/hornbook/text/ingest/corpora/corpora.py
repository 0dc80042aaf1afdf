"""The usual public corpora, as `corpora.toml` lists them, and what a recipe says to read one."""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hornbook.errors import UsageError


@dataclass(frozen=True, slots=True)
class PublicCorpus:
    """One corpus. In `urls`, `listing` and `checksums` a name in braces is one of `variables`."""

    name: str
    what: str
    size: str
    licence: str
    cites: str
    """Where size and licence stand."""
    urls: Sequence[str] = ()
    """Files, or patterns with `*` for addresses that can be listed (hf://, s3://, file://)."""
    listing: str = ""
    """A file that names one file a line, relative to `base`; `.gz` is unpacked."""
    base: str = ""
    checksums: str = ""
    """A file of lines `digest name`."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Name -> default."""
    source: Mapping[str, str] = field(default_factory=dict)
    """Settings of `text.sources.NAME` besides `paths`."""
    options: Mapping[str, bool] = field(default_factory=dict)
    """For the file system: s3 that the downloader pays for."""
    note: str = ""
    """What must be known before or done after."""


_TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
CORPORA = {name: PublicCorpus(name, **entry) for name, entry in _TABLE.items()}
"""By name, as `corpora.toml` says."""


def corpus_of(name: str) -> PublicCorpus:
    """A corpus of the table, or one of a single address. Raises UsageError."""
    if "://" in name:
        stem = name.rstrip("/").rpartition("/")[2].partition(".")[0].partition("*")[0]
        plain = "".join(char if char.isalnum() or char in "-_" else "-" for char in stem).strip("-")
        return PublicCorpus(name=plain or "fetched", what=name, size="", licence="", cites="", urls=(name,))
    if name not in CORPORA:
        raise UsageError(f"there is no corpus {name!r}: name one of {', '.join(CORPORA)}, or an address")
    return CORPORA[name]


def filled(corpus: PublicCorpus, given: Mapping[str, str]) -> dict[str, str]:
    """The variables of a corpus, those given in place of the defaults. Raises UsageError."""
    for name, value in given.items():
        if name not in corpus.variables:
            known = ", ".join(corpus.variables) or "none"
            raise UsageError(f"{corpus.name} has no variable {name!r}: it has {known}")
        if not value or any(part in ("", ".", "..") for part in value.split("/")) or set(value) & set("?#*%\\ "):
            raise UsageError(f"{name}={value}: write a name as it stands in the address")
    return {**corpus.variables, **given}
