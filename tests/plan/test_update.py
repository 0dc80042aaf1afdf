"""The optimizer's part of a step: bytes by what a rule keeps, products of rules that treat matrices as such."""

import pytest

from hornbook.model.config.parameter_count import count_parameters
from hornbook.plan.devices.device_rates import shares_of
from hornbook.plan.devices.hardware import parse_cluster
from hornbook.plan.step_time import estimate_step
from hornbook.plan.update import Update, _matrices, update_of
from hornbook.settings.recipe import Recipe
from hornbook.settings.resolve import resolve

VOCAB = 128256


def recipe_of(*words: str) -> Recipe:
    return resolve("llama-1b", ["train.precision=bf16", *words], environ={}).recipe


def update(*words: str) -> Update:
    recipe = recipe_of(*words)
    return update_of(recipe.model, VOCAB, recipe.optim, recipe.train.item_bytes)


def seconds(*words: str, cluster: str = "H100") -> float:
    return estimate_step(recipe_of(*words), VOCAB, parse_cluster(cluster)).update


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["optim.kind=adamw"], 28),  # gradient, weight and two moments read, three of them written
        (["optim.kind=adamw", "optim.state=bf16"], 20),
        (["optim.kind=lion"], 20),
        (["optim.kind=sgd"], 20),
        (["optim.kind=sgd", "optim.momentum=0"], 12),
        (["optim.kind=adafactor"], 12),  # rows and columns of moments are little
        (["optim.kind=adamw", "train.precision=bf16-pure"], 14),
    ],
)
def test_bytes_follow_from_what_a_rule_keeps(words: list[str], expected: float) -> None:
    assert update(*words).bytes_per_value == pytest.approx(expected)


def test_embeddings_have_the_rule_that_they_are_given() -> None:
    """AdamW's moments of 8 bits are not those of embeddings; Muon leaves them to AdamW."""
    model = recipe_of().model
    share = VOCAB * model.width / count_parameters(model, VOCAB)
    assert update("optim.kind=adamw8bit").bytes_per_value == pytest.approx(
        12 + share * 16 + (1 - share) * 4 * (1 + 4 / 256), rel=1e-3
    )
    assert update("optim.kind=muon").bytes_per_value == pytest.approx(12 + share * 16 + (1 - share) * 8, rel=1e-3)


def test_the_matrices_are_all_but_vectors() -> None:
    further = ["model.mtp=sequential", "model.mtp.depth=2"]
    for name, *words in (
        ("llama-1b",),
        ("llama-1b", *further),
        ("gpt3-2.7b",),
        ("t5-v1.1-base",),
        ("bert-base",),
        ("mixtral-8x7b",),
    ):
        model = resolve(name, words, environ={}).recipe.model
        size = sum(count * each.size for each, count in _matrices(model, 32064).items())
        assert 0.98 < size / count_parameters(model, 32064) <= 1.0


def test_muon_takes_the_share_of_a_step_that_its_author_says() -> None:
    """Of square matrices T m / B of the model's operations (Jordan 2024, section on run time): 6 T m^3 to 6 m^2 B."""
    rule = recipe_of("optim.kind=muon").optim
    assert rule.update_operations((768, 768)) / (6 * 768**2 * 524288) == pytest.approx(5 * 768 / 524288)
    assert rule.update_operations((768, 3072)) == rule.update_operations((3072, 768)) < 5 * 6 * 768**2 * 3072
    assert update("optim.kind=muon").narrow_operations > 0 == update("optim.kind=adamw").narrow_operations
    assert update("optim.kind=muon", "optim.dtype=float32").narrow_operations == 0


def test_a_basis_for_both_sides_costs_more_than_moments_alone() -> None:
    rule = recipe_of("optim.kind=soap").optim
    square = rule.update_operations((1000, 1000))
    assert square == pytest.approx(2 * (6 + (8 + 8 / 3) / 10) * 1e9)
    assert rule.update_operations((20_000, 1000)) < 20 * square / 2 < rule.update_operations((10_000, 10_000))
    adamw, muon, soap = (seconds(f"optim.kind={kind}") for kind in ("adamw", "muon", "soap"))
    moved, share = 28 * count_parameters(recipe_of().model, VOCAB), shares_of(parse_cluster("H100").device).bandwidth
    assert adamw == pytest.approx(moved / (share * 3.35e12), rel=0.01)
    assert soap > muon > adamw > seconds("optim.kind=lion") > seconds("optim.kind=sgd", "optim.momentum=0")


def test_ranks_that_share_the_state_share_its_update() -> None:
    words = ["parallel.data=8", "parallel.shard=optimizer"]
    for kind in ("adamw", "muon"):
        alone = seconds(f"optim.kind={kind}", cluster="8xH100")
        assert seconds(f"optim.kind={kind}", *words, cluster="8xH100") == pytest.approx(alone / 8)


def test_groups_have_the_rules_that_they_are_given() -> None:
    """A group without a rule keeps the optimizer's; the first that matches a name counts."""
    model = recipe_of().model
    values = count_parameters(model, VOCAB)
    down = model.layers * model.hidden * model.width
    few = 'optim.groups=[{match="blocks.*.mlp.down.*",rule={kind="sgd",momentum=0}}]'
    assert update(few).bytes_per_value == pytest.approx(28 - 16 * down / values, rel=1e-3)
    none = 'optim.groups=[{match="*.mlp.*",lr=1e-4},{match="blocks.*.mlp.down.*",rule={kind="sgd",momentum=0}}]'
    assert update(none).bytes_per_value == pytest.approx(28)
    embedding = 'optim.groups=[{match="embedding.*",rule={kind="sgd",momentum=0}}]'
    assert update(embedding).bytes_per_value == pytest.approx(28 - 16 * VOCAB * model.width / values, rel=1e-3)


def test_matrices_side_by_side_are_one_unless_a_group_parts_them() -> None:
    """Muon's products of query, key and value together are not those of each."""
    queries = 'optim.groups=[{match="*.attention.query.*",rule={kind="lion"}}]'
    out = 'optim.groups=[{match="*.attention.out.*",rule={kind="lion"}}]'
    every = 'optim.groups=[{match="*.attention.*",lr=1e-4}]'
    whole, rest, joint, same = (update("optim.kind=muon", *words) for words in ([], [queries], [out], [every]))
    assert same == whole
    model, rule = recipe_of().model, recipe_of("optim.kind=muon").optim
    keys = model.kv_heads * model.head_dim
    of = {name: rule.update_operations((rows, model.width)) for name, rows in (("out", model.width), ("kv", 2 * keys))}
    assert whole.narrow_operations - joint.narrow_operations == pytest.approx(model.layers * of["out"])
    joined = rule.update_operations((model.width + 2 * keys, model.width))
    assert whole.narrow_operations - rest.narrow_operations == pytest.approx(model.layers * (joined - of["kv"]))
