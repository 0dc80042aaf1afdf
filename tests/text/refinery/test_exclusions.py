"""Lists of documents that a corpus shall be without."""

import json
from pathlib import Path

import pytest

from hornbook.errors import UsageError
from hornbook.text.config.text import SourceConfig, TextConfig
from hornbook.text.refinery.exclusions import read_exclusions, write_exclusions
from hornbook.text.refinery.pipeline.prepare import prepare


def test_a_document_is_left_out_of_its_own_source(tmp_path: Path) -> None:
    """Both sources count their rows from 1, and another document of the same source is on the list twice."""
    listed = [{"id": "1", "source": "web"}, {"id": "2", "source": "old web"}, {"id": "1", "source": "web"}]
    assert write_exclusions(tmp_path / "bad.jsonl", listed) == 2
    names = read_exclusions(tmp_path / "bad.jsonl", {"web", "notes"})
    assert names == ["web::1", "2"]
    sources = {}
    for name in ("web", "notes"):
        rows = [{"id": str(number), "text": f"{name} has {number}"} for number in (1, 2, 3)]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        sources[name] = SourceConfig(paths=[str(tmp_path / f"{name}.jsonl")], id_field="id")
    config = TextConfig(sources=sources, exclude=names)
    dropped = {name: each.dropped["excluded"].rows for name, each in prepare(config, tmp_path / "data").sources.items()}
    assert dropped == {"web": 2, "notes": 1}
    with pytest.raises(UsageError, match="no document has the id or origin 'web::4'"):
        prepare(config.model_copy(update={"exclude": ["web::4"]}), tmp_path / "other")
