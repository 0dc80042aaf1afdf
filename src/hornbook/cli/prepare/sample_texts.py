"""Texts of the files that an option such as `--good` names."""

from collections.abc import Iterator, Sequence


def sample_texts(option: str, paths: Sequence[str]) -> Iterator[str]:
    """Every document, one at a time. Raises UsageError where there is no such file."""
    from hornbook.text.config.text import SourceConfig
    from hornbook.text.ingest.document import Document, ReadOptions
    from hornbook.text.ingest.inputs import list_inputs
    from hornbook.text.ingest.readers import read_file

    source = SourceConfig(paths=list(paths))
    options = ReadOptions.of(source)
    rows = (row for file in list_inputs(option.strip("-"), source) for row in read_file(file, options))
    return (row.text for row in rows if isinstance(row, Document))
