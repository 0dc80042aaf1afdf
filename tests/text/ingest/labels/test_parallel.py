"""Files whose lines belong together: rows of them, and what is refused before a wrong pair is learned."""

import gzip
from pathlib import Path

import pytest

from hornbook.errors import UsageError
from hornbook.text.config.labels import AnswerLabels, ClassLabels, LabelsConfig
from hornbook.text.config.text import SourceConfig
from hornbook.text.ingest.document import Document, ReadOptions, Rejected
from hornbook.text.ingest.labels.parallel import stamped_inputs
from hornbook.text.ingest.readers import read_file

GERMAN_ENGLISH = AnswerLabels(prompt="de", answer="en", template="translate: {prompt}")


def read(path: Path, config: LabelsConfig = GERMAN_ENGLISH) -> tuple[list[Document | Rejected], str]:
    digests: list[str] = []
    source = SourceConfig(paths=[str(path)], layout="parallel")
    (file,) = stamped_inputs("s", source, config)
    return list(read_file(file, ReadOptions.of(source, labels=config), digests.append)), digests[0]


def parts(document: Document | Rejected) -> list[str]:
    assert isinstance(document, Document), document
    assert document.labels is not None
    return [document.text[start:end] for start, end in document.labels.parts]


def test_a_line_of_each_file_is_a_row(tmp_path: Path) -> None:
    (tmp_path / "test.de").write_bytes(b"eins\r\nzwei\n\ndrei")
    (tmp_path / "test.en").write_bytes(b"one\r\n\n\nthree\n")
    (one, bad, blank, three), _ = read(tmp_path / "test.de")
    assert parts(one) == ["translate: eins", "one"]
    assert parts(three) == ["translate: drei", "three"]
    assert isinstance(three, Document)
    assert three.origin == f"{tmp_path}/test.de:4"
    for rejected, line in ((bad, 2), (blank, 3)):
        assert isinstance(rejected, Rejected)
        assert (rejected.line, rejected.kind) == (line, "no answer")


def test_compressed_files_and_more_fields(tmp_path: Path) -> None:
    for ending, lines in (("input0", "a\nb"), ("input1", "c\nd"), ("label", "no\nyes")):
        (tmp_path / f"rte.{ending}.gz").write_bytes(gzip.compress(lines.encode()))
    labels = ClassLabels(text="input0", pair="input1", label="label", labels=["no", "yes"])
    found, _ = read(tmp_path / "rte.input0.gz", labels)
    assert [parts(each) for each in found] == [["a", "c"], ["b", "d"]]
    assert [each.labels.values for each in found if isinstance(each, Document) and each.labels] == [(0.0,), (1.0,)]


def test_files_of_unequal_lines_are_no_rows(tmp_path: Path) -> None:
    (tmp_path / "test.de").write_text("eins\nzwei\ndrei\n")
    (tmp_path / "test.en").write_text("one\n\ntwo\nthree\n")
    ((found,), _) = read(tmp_path / "test.de")
    assert isinstance(found, Rejected)
    assert found.reason == "parallel files differ in lines: test.de has 3, test.en has 4"


def test_the_other_file_counts_for_digest_and_stamp(tmp_path: Path) -> None:
    (tmp_path / "test.de").write_text("eins\n")
    (tmp_path / "test.en").write_text("one\n")
    source = SourceConfig(paths=[str(tmp_path / "test.de")], layout="parallel")
    before, stamp = read(tmp_path / "test.de")[1], stamped_inputs("s", source, GERMAN_ENGLISH)[0].stamp
    (tmp_path / "test.en").write_text("won\n")
    assert read(tmp_path / "test.de")[1] != before
    assert stamped_inputs("s", source, GERMAN_ENGLISH)[0].stamp != stamp


def test_what_does_not_belong_together_is_refused(tmp_path: Path) -> None:
    (tmp_path / "test.de").write_text("eins\n")
    with pytest.raises(UsageError, match=r"test.en belongs beside .*test.de and cannot be read: No such file"):
        read(tmp_path / "test.de")
    (tmp_path / "test.en").write_text("one\n")
    with pytest.raises(UsageError, match=r"test.en does not end in .de, the first field"):
        read(tmp_path / "test.en")
    with pytest.raises(UsageError, match=r"layout \"parallel\" is of labelled sets"):
        stamped_inputs("s", SourceConfig(paths=[str(tmp_path / "test.de")], layout="parallel"), None)
