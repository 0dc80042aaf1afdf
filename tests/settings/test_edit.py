"""Values of a recipe file are changed in place, and nothing else of it."""

import tomllib

from hornbook.settings.edit import with_values

TEXT = """# top
name = "x"   # the name

[train]  # length
tokens = "25B"   # all
micro_batch = 2 # rows
[parallel]
recompute = { kind = "block", every = 2 } # again
[parallel.pipeline]
stages = 1
[optim]
lr=1e-3"""


def test_values_change_in_place() -> None:
    changed = with_values(TEXT, {("train", "micro_batch"): 4, ("parallel", "recompute"): "none"})
    assert changed == TEXT.replace("= 2 # rows", "= 4 # rows").replace('{ kind = "block", every = 2 }', '"none"')


def test_new_values_stand_below_their_header_in_order() -> None:
    changed = with_values(TEXT, {("parallel", "data"): 8, ("parallel", "sequence"): True, ("model", "width"): 1048576})
    assert "[parallel]\ndata = 8\nsequence = true\nrecompute" in changed
    assert changed.endswith("lr=1e-3\n\n[model]\nwidth = 1_048_576\n")
    new = {"data = 8", "sequence = true", "", "[model]", "width = 1_048_576"}
    assert [line for line in changed.splitlines() if line not in new] == [each for each in TEXT.splitlines() if each]


def test_a_table_of_its_own_gets_the_keys_one_by_one() -> None:
    changed = with_values(TEXT, {("parallel", "pipeline"): {"stages": 4, "schedule": "zbv"}})
    assert tomllib.loads(changed)["parallel"]["pipeline"] == {"stages": 4, "schedule": "zbv"}
    inline = with_values("[parallel]\npipeline = 2 # two\n", {("parallel", "pipeline"): {"stages": 4}})
    assert inline == "[parallel]\npipeline = { stages = 4 } # two\n"
