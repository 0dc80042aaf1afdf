"""The funnel adds up, or says that it does not."""

from hornbook.text.refinery.pipeline.funnel import Funnel, SourceFunnel


def example() -> Funnel:
    one, two = SourceFunnel(files=2), SourceFunnel(files=1)
    one.keep(3, 30, 28)
    one.drop("empty", 2, 4)
    one.drop("empty", 1, 1)
    one.quarantine("invalid JSON", 1, 9)
    two.keep(1, 5, 5)
    two.drop("exact duplicate", 4, 20)
    return Funnel({"one": one, "two": two})


def test_rows_and_bytes_add_up():
    funnel = example()
    assert all(source.balanced() for source in funnel.sources.values())
    total = funnel.total()
    assert total.balanced()
    assert (total.read.rows, total.kept.rows, total.files, total.text_bytes) == (12, 4, 3, 33)
    assert total.dropped["empty"].rows == 3
    funnel.sources["one"].read.add(1, 0)
    assert not funnel.sources["one"].balanced()


def test_json_and_back():
    funnel = example()
    assert Funnel.from_json(funnel.to_json()) == funnel
    assert funnel.to_json()["total"]["in"] == {"rows": 12, "bytes": 69}


def test_lines_run_from_read_to_kept():
    lines = [(source, outcome, reason) for source, outcome, reason, _ in example().lines()]
    assert lines[:4] == [
        ("one", "in", ""),
        ("one", "quarantined", "invalid JSON"),
        ("one", "dropped", "empty"),
        ("one", "kept", ""),
    ]
