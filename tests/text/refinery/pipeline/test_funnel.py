"""The funnel adds up."""

from hornbook.text.refinery.pipeline.funnel import Funnel, SourceFunnel


def example() -> Funnel:
    one, two = SourceFunnel(files=2), SourceFunnel(files=1)
    one.kept.add(3, 30)
    one.text_bytes = 28
    one.dropped["empty"].add(2, 4)
    one.dropped["empty"].add(1, 1)
    one.quarantined["invalid JSON"].add(1, 9)
    two.kept.add(1, 5)
    two.text_bytes = 5
    two.dropped["exact duplicate"].add(4, 20)
    return Funnel({"one": one, "two": two})


def test_rows_and_bytes_add_up():
    total = example().total()
    assert (total.read.rows, total.read.bytes) == (12, 69)
    assert (total.kept.rows, total.files, total.text_bytes) == (4, 3, 33)
    assert total.dropped["empty"].rows == 3


def test_json_and_back():
    funnel = example()
    assert Funnel.from_json(funnel.to_json()) == funnel
    assert funnel.to_json()["total"]["in"] == {"rows": 12, "bytes": 69}
