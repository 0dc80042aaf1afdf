"""The search finds what estimating every layout finds; results are legal, sensible, and the same each time."""

from typing import Any

import pytest

from hornbook.plan.devices.hardware import parse_cluster
from hornbook.plan.planned_memory import estimate_memory
from hornbook.plan.planner import plan_run, settle, trainer_of, vocabulary
from hornbook.plan.search.best import Search
from hornbook.plan.search.plan_result import capacity
from hornbook.plan.search.space import Block, Layouts, Spread, divisors, problems
from hornbook.plan.step_time import estimate_step
from hornbook.settings.resolve import resolve

SMALL = ["model.layers=6", "train.batch_tokens=196608", "train.sequence=4096", "train.compile=false"]


def layouts_of(name: str, cluster: str, *words: str) -> tuple[Layouts, Search, float]:
    found = parse_cluster(cluster)
    recipe = settle(resolve(name, words, environ={}).recipe, found)
    layouts = Layouts(recipe, found, ["bf16"])
    return layouts, Search(vocabulary(recipe), found, layouts, trainer_of), capacity(found)


def every_layout(layouts: Layouts) -> list[tuple[Block, Spread]]:
    variants = (each for block in layouts.blocks() for each in layouts.variants(block))
    return [(block, spread) for block in variants for spread in layouts.spreads(block)]


@pytest.mark.parametrize(
    ("name", "cluster", "words"),
    [
        ("llama-1b", "6xH100", SMALL),
        ("llama-1b", "2x4xV100", [*SMALL, "train.precision=fp16"]),
        ("tiny-mixtral", "12xA100", ["train.batch_tokens=49152"]),
        ("tiny-mixtral", "12xA100", ["train.batch_tokens=49152", "model.mtp=sequential"]),
    ],
)
def test_the_search_finds_what_estimating_every_layout_finds(name: str, cluster: str, words: list[str]) -> None:
    layouts, search, room = layouts_of(name, cluster, *words)
    devices = parse_cluster(cluster)
    vocab = vocabulary(layouts.recipe(Block(), Spread()))
    times = dict[tuple[object, ...], float]()
    for block, spread in every_layout(layouts):
        recipe = layouts.recipe(block, spread)
        assert not any(problems(recipe))
        assert recipe.parallel.world == devices.count
        if max(each.peak.total for each in estimate_memory(recipe, vocab, devices.device)) <= room:
            key = block._replace(micro=0, recompute="", exchange=""), spread
            step = estimate_step(recipe, vocab, devices, trainer_of(recipe)).total
            times[key] = min(step, times.get(key, step))
    found = search.fastest(5, room)
    assert [each.step.total for each in found] == pytest.approx(sorted(times.values())[:5])
    assert search.num_estimates < len(times)
    alike = [each.step.total for each in search.fastest(1, room, 1.1)]
    assert alike == pytest.approx([each for each in sorted(times.values()) if each <= 1.1 * min(times.values())])


@pytest.mark.parametrize(
    "fixed",
    [
        {"tensor": 2, "micro": 2},
        {"stages": 2, "schedule": "zb-h1"},
        {"data": 3, "shard": "everything"},
        {"stages": 3, "schedule": "gpipe", "recompute": "block"},
        {"context": 2, "exchange": "all-to-all"},
    ],
)
def test_a_search_with_a_part_fixed_finds_what_it_finds_among_layouts_that_have_it(fixed: dict[str, Any]) -> None:
    def has(block: Block, spread: Spread) -> bool:
        return all({**block._asdict(), **spread._asdict()}[name] == value for name, value in fixed.items())

    free, _, room = layouts_of("llama-1b", "6xH100", *SMALL)
    cluster, recipe = parse_cluster("6xH100"), free.recipe(Block(), Spread())
    layouts = Layouts(recipe, cluster, ["bf16"], fixed)
    every = every_layout(layouts)
    assert every
    assert all(has(*each) for each in every)
    if fixed.get("schedule") != "gpipe":  # which a free search leaves out
        assert set(every) == {each for each in every_layout(free) if has(*each)}
    search = Search(vocabulary(recipe), cluster, layouts, trainer_of)
    times = [search._step(*each).total for each in every if search._memory(*each) <= room]
    assert search.fastest(1, room)[0].step.total == pytest.approx(min(times))
    assert search.smallest(1)[0].peak == pytest.approx(min(search._memory(*each) for each in every), rel=0.05)


ON_HOST = ["parallel.data=2", "parallel.shard=everything", "parallel.offload=cpu"]
ON_HOST += ["parallel.offload.optimizer=true", "parallel.offload.parameters=true"]


def test_no_layout_is_ruled_out_for_weights_that_the_host_holds() -> None:
    words = ["train.batch_tokens=8192", "train.sequence=4096", "train.micro_batch=1", "model.layers=128"]
    layouts, search, _ = layouts_of("llama-1b", "2xH100", *words, *ON_HOST)
    devices, vocab = parse_cluster("2xH100"), vocabulary(layouts.recipe(Block(), Spread()))
    for block, spread in every_layout(layouts):
        ranks = estimate_memory(layouts.recipe(block, spread), vocab, devices.device)
        assert search._least_bytes(block, spread) <= max(each.peak.total for each in ranks), (block, spread)


def test_weights_are_held_by_the_host_where_ranks_share_them() -> None:
    layouts, _, _ = layouts_of("llama-1b", "6xH100", *SMALL, *ON_HOST)
    found = [layouts.recipe(block, spread).parallel for block, spread in every_layout(layouts)]
    assert {each.shard for each in found} == {"none", "optimizer", "gradients", "everything"}
    for each in found:
        assert each.offload.kind == "cpu"
        assert each.offload.parameters == (each.shard == "everything")


def test_all_axes_are_searched() -> None:
    layouts, _, _ = layouts_of(
        "tiny-mixtral",
        "4x8xH100",
        "train.batch_tokens=65536",
        "train.sequence=4096",
        "model.position.length=4096",
        "model.layers=16",
        "model.heads=8",
        "model.attention.kv_heads=8",
    )
    found = every_layout(layouts)
    assert {block.recompute for block, _ in found} == {"none", "selective", "block"}
    assert {block.exchange for block, _ in found} == {"ring", "all-to-all"}
    assert {spread.shard for _, spread in found} == {"none", "optimizer", "gradients", "everything"}
    assert {spread.schedule for _, spread in found} == {"1f1b", "interleaved", "zb-h1", "zbv", "dualpipev"}
    assert max(spread.replicas for _, spread in found) > 1
    assert min(max(getattr(block, axis) for block, _ in found) for axis in ("tensor", "context", "expert", "micro")) > 1
    assert len(found) == len(set(found))


def test_of_two_exchanges_of_context_ranks_the_better_one_is_listed() -> None:
    """Keys and values of few heads go round beside attention of long rows; of many an exchange of heads sends less."""
    words = "train.compile=false", "model.position.length=32768"
    _, few, _ = layouts_of("llama-1b", "8xH100", *words, "train.sequence=32768", "model.attention.kv_heads=8")
    _, many, room = layouts_of("llama-1b", "8xH100", *words, "train.sequence=8192", "model.attention.kv_heads=32")
    times = {
        (name, kind): search._microbatch_seconds(Block(context=8, exchange=kind, micro=8))
        for name, search in (("few", few), ("many", many))
        for kind in ("ring", "all-to-all")
    }
    assert times["few", "ring"] < times["few", "all-to-all"]
    assert times["many", "all-to-all"] < times["many", "ring"]
    found = many.fastest(40, room)
    assert len({each.name for each in found}) == len(found) == 40
    assert any(each.block.exchange == "all-to-all" for each in found)


@pytest.mark.parametrize(
    ("name", "cluster", "data_parallel"),
    [
        ("llama-1b", "8xH100", True),
        ("llama-7b", "8xH100", True),
        ("bart-base", "8xH100", True),
        ("gpt3-175b", "16x8xH100", False),
    ],
)
def test_winners_are_what_people_use(name: str, cluster: str, data_parallel: bool) -> None:
    """A model that fits on a device has no tensor ranks and stages; one of 175B has, within machines."""
    best = plan_run(resolve(name, environ={}).recipe, parse_cluster(cluster), search=True).best
    assert best.fits
    alone = best.parallel.tensor * best.parallel.pipeline.stages == 1
    assert alone == data_parallel
    assert best.parallel.tensor <= 8
    assert best.mfu > 0.25


def test_the_same_plan_each_time() -> None:
    recipe = resolve("llama-7b", environ={}).recipe
    first, second = (plan_run(recipe, parse_cluster("2x8xA100"), search=True).model_dump() for _ in range(2))
    assert first == second


def test_layouts_at_the_front_are_not_beaten() -> None:
    plan = plan_run(resolve("llama-7b", environ={}).recipe, parse_cluster("2x8xA100"), search=True, top=12)
    front = [(each.step.total, each.worst.peak.total) for each in plan.layouts if each.pareto]
    assert front
    for each in plan.layouts:
        point = each.step.total, each.worst.peak.total
        beaten = any(one <= point[0] and two <= point[1] for one, two in front if (one, two) != point)
        assert beaten != each.pareto


def test_counts_that_are_no_power_of_two() -> None:
    plan = plan_run(
        resolve("llama-1b", ["train.batch_tokens=786432"], {}).recipe,
        parse_cluster("12xH100"),
        search=True,
    )
    assert plan.best.parallel.world == 12
    assert plan.best.fits
    assert divisors(24, 8) == [1, 2, 3, 4, 6, 8]


def test_float8_is_compared_where_the_user_asks() -> None:
    recipe = resolve("llama-7b", environ={}).recipe
    assert {each.precision for each in plan_run(recipe, parse_cluster("8xH100"), search=True).layouts} == {"bf16"}
    found = plan_run(recipe, parse_cluster("8xH100"), search=True, float8=True)
    assert found.best.precision == "float8"
