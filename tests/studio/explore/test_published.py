"""Numbers of papers that explorers reproduce, and what each asks of the engine."""

import json
from pathlib import Path
from typing import Any

import pytest

from hornbook.errors import UsageError
from hornbook.parallel.axes.pipeline.pass_orders import Durations, plan, simulate, step_span
from hornbook.parallel.world import AXES
from hornbook.plan.planner import estimate_layout, vocabulary
from hornbook.studio.explore.explorer import load_explorer
from hornbook.studio.explore.recipes import on, recipe_of
from hornbook.studio.explore.tools import layouts as layouts_tool
from hornbook.studio.explore.tools.tensor import divided_product
from hornbook.studio.explore.tools.zero import paper_bytes
from hornbook.text.config.text import SourceConfig
from hornbook.text.refinery.pipeline.prepare import prepare


@pytest.mark.parametrize(
    ("schedule", "bubble"),
    [  # Narayanan et al. 2021 (2104.04473): (p - 1) / m and (p - 1) / (v m); Qi et al. 2024 (2401.10241, 2405.15362)
        ("gpipe", 15 / 64),
        ("1f1b", 15 / 64),
        ("interleaved", 15 / 64 / 2),
        ("zb-h1", 15 / 64 / 3),
        ("zbv", 15 / 64 / 6),
    ],
)
def test_bubbles(schedule: Any, bubble: float) -> None:
    pipeline = load_explorer("pipeline")
    found = pipeline(schedule=schedule, ranks=16, microbatches=64)
    assert found.summary["bubble, as a share of the work"] == pytest.approx(bubble)
    assert pipeline.further is not None
    table = pipeline.further(pipeline.ask({"schedule": schedule, "ranks": 16, "microbatches": 64})).schedules
    assert table.rows[table.chosen][1] == pytest.approx(bubble)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved", "zb-h1", "zbv", "dualpipev"])
def test_the_planners_span_is_that_of_the_whole_step(schedule: Any) -> None:
    """Of equal stages it is exact, however many microbatches follow those that fill the pipeline."""
    chunks = {"interleaved": 2, "zbv": 2, "dualpipev": 2}.get(schedule, 1)
    durations = [Durations(1 / chunks, 1 / chunks, 1 / chunks)] * (4 * chunks)
    for count in (4, 8, 12, 28):
        timed = simulate(plan(schedule, 4, chunks, count), durations)
        whole = max(passes[-1].end for passes in timed)
        assert step_span(schedule, 4, chunks, count, durations, 3.0) == pytest.approx(whole)


def test_bytes_of_zero() -> None:
    """Figure 1 of Rajbhandari et al. 2020 (1910.02054): 7.5B values on 64 ranks."""
    totals = [sum(paper_bytes(7.5e9, 64, stage).values()) / 1e9 for stage in range(4)]
    assert totals == pytest.approx([120, 31.4, 16.6, 1.88], rel=3e-3)
    found = load_explorer("zero")(parameters=7.5e9, ranks=64)
    assert [each.total / 1e9 for each in found.paper.bars] == pytest.approx(totals)
    # Section 7: stages up to 2 send 2 psi, stage 3 sends 3 psi.
    assert [row[2] * 64 / 63 for row in found.traffic.rows] == pytest.approx([2, 2, 2, 3])


def test_memory_of_llama_7b() -> None:
    """Zhao et al. 2024 (2403.03507), section 1: 14 GB of weights, 42 GB of moments and gradients, in 16 bits."""
    found = load_explorer("memory")(model="llama-7b", gpus=1, micro_batch=1, sequence=256, precision="bf16-pure")
    parts = {row[0]: row[1] / 1e9 for row in found.parts.rows}
    assert parts["weights"] == pytest.approx(14, rel=0.05)
    update = next(each for each in found.phases.bars if each.name == "update").parts
    assert (update["gradients"] + update["optimizer"]) / 1e9 == pytest.approx(42, rel=0.05)
    assert found.summary["peak"] == max(each.total for each in found.phases.bars)


def test_the_memory_is_the_planners() -> None:
    """The same recipe, built from the settings that the page copies."""
    memory = load_explorer("memory")
    question = memory.ask({"model": "llama-1b", "shard": "zero-3", "recompute": "block"})
    assert memory.settings is not None
    recipe, cluster = on("8xH100", "llama-1b", memory.settings(question))
    layout = estimate_layout(recipe, vocabulary(recipe), cluster)
    assert memory.answer(question).summary["peak"] == layout.worst.peak.total


def test_learning_rates_of_papers() -> None:
    """Vaswani et al. 2017 (1706.03762): width^-0.5 min(n^-0.5, n 4000^-1.5), width 512, at 4,000 and 100,000 steps;
    GPT-3 (2005.14165): down to a tenth of 0.6e-4."""
    schedules = load_explorer("schedules")
    base = next(each for each in schedules.presets if each.name == "Transformer base")
    (curve,) = schedules(**base.values).rates.curves
    assert max(curve.y) == pytest.approx(512**-0.5 * 4000**-0.5, rel=0.001)
    assert curve.y[-1] == pytest.approx(512**-0.5 * 100_000**-0.5, rel=0.001)
    gpt3 = next(each for each in schedules.presets if each.name == "GPT-3 175B")
    (curve,) = schedules(**gpt3.values).rates.curves
    assert curve.y[-1] == pytest.approx(0.6e-5, rel=0.01)


def test_compute_of_published_models() -> None:
    """Table D.1 of GPT-3; Chinchilla's 70B parameters and 1.4T tokens (2203.15556) by the law fitted again."""
    found = load_explorer("compute-optimal")(operations=5.76e23)
    for row in found.published.rows:
        assert row[3] == pytest.approx(row[4], rel=0.01)
    again = next(row for row in found.laws.rows if row[0] == "besiroglu")
    assert again[1] == pytest.approx(70e9, rel=0.05)
    assert again[3] == pytest.approx(1.4e12, rel=0.06)


def test_state_of_optimizers() -> None:
    """Bytes per value: Adam 8 (1412.6980), Lion 4 (2302.06675), 8-bit moments about 2 (2110.02861)."""
    found = load_explorer("optimizer-memory")(model="llama-7b")
    state = {row[0]: row[2] for row in found.table.rows}
    assert state["adamw"] == pytest.approx(8)
    assert state["lion"] == pytest.approx(4)
    assert state["adamw8bit"] == pytest.approx(2.03, rel=0.07)  # embeddings keep moments of 32 bits
    assert state["adafactor"] < 0.01
    rules = load_explorer("optimizers")(kinds="adamw,lion,adamw8bit,adafactor,soap").rules
    assert [row[1] for row in rules.rows] == pytest.approx(
        [8, 4, 2.03, 8 / 4096, 8 + 4 * 4], rel=0.002
    )  # SOAP: squares


def test_recomputation_of_whole_blocks() -> None:
    """Chen et al. 2016 (1604.06174): one more forward pass, a third of the operations, less attention and head."""
    recompute = load_explorer("recompute")
    question = recompute.ask({"model": "gpt3-175b", "rows": 1})
    found = recompute.answer(question)
    assert found.summary["operations computed twice"] == pytest.approx(1 / 3, rel=0.05)
    # Korthikanti et al. 2022 (2205.05198), table 2: of 34 s b h and scores, block recomputation keeps 2 s b h.
    assert recompute.further is not None
    policies = recompute.further(question).policies
    assert policies.rows[0][1] > 10 * policies.rows[-1][1]
    assert policies.rows[policies.chosen][1] == found.summary["activations of blocks at their peak"]


def test_tensor_shards_make_the_whole_product() -> None:
    for ranks in (1, 2, 3, 4, 8):
        whole, partial = divided_product(ranks)
        assert len(partial) == ranks
        assert sum(partial) == pytest.approx(whole, rel=1e-12, abs=1e-12)
    found = load_explorer("tensor")(model="gpt3-175b", ranks=8)
    # Narayanan et al. 2021, section 3.2: each all-reduce sends 2 b s h (t - 1) / t values of a layer.
    assert found.collectives.rows[0][1] == pytest.approx(2 * 2 * 2048 * 12288 * 7 / 8)


def test_naive_model_parallelism_keeps_one_device_busy() -> None:
    for devices in (2, 4, 8):
        found = load_explorer("model-parallel")(devices=devices)
        waits = found.summary["share of the time that devices wait"]
        assert waits == pytest.approx(1 - 1 / devices)


def test_ranks_of_the_grid_are_those_of_the_mesh() -> None:
    assert layouts_tool.AXES == AXES
    found = load_explorer("layouts")(model="llama-3-8b", data=2, tensor=4, pipeline=2, shard="none")
    labels = [cell.label for row in found.ranks.cells for cell in row]
    assert labels[0] == "rank 0: pipeline 0, replica 0, tensor 0"
    assert labels[5] == "rank 5: pipeline 0, replica 1, tensor 1"
    assert labels[8] == "rank 8: pipeline 1, replica 0, tensor 0"


def test_a_step_of_gpt3_on_1024_gpus() -> None:
    """Narayanan et al. 2021 (2104.04473), table 1: 175B parameters, 1,024 A100 with 8 x 16 x 8 of theirs: 45 %."""
    gpt3 = next(each for each in load_explorer("layouts").presets if each.name == "GPT-3 on 1,024")
    assert load_explorer("layouts")(**gpt3.values).summary["MFU"] == pytest.approx(0.45, rel=0.1)


def test_waiting_of_data_parallel_workers() -> None:
    """A bound of staleness under a worker that is always four times slower (Ho et al. 2013): at most the pace of eight
    such workers, and asynchronous updates at nearly the sum of all rates. Bytes of averages: Thakur et al. 2005."""
    tool = load_explorer("data-parallel")
    question = tool.ask({"scheme": "bounded", "slow": 4, "message": 0, "parameters": 7e9})
    assert tool.further is not None
    rates = {row[0]: row[2] for row in tool.further(question).schemes.rows}
    assert rates["bounded"] < 2
    assert 6.5 < rates["asynchronous"] < 8
    assert rates["bounded"] == tool.answer(question).summary["gradients in the time of one"]
    sent = {row[0]: row[2] for row in tool.answer(question).traffic.rows}
    assert sent == pytest.approx({"server": 8 * 14e9, "tree": 3 * 14e9, "ring": 24.5e9, "halving and doubling": 24.5e9})


def test_cleaning_keeps_what_prepare_keeps(tmp_path: Path) -> None:
    """Documents on both sides of three thresholds of Rae et al. 2021 (2112.11446), table A1: 50 words, 80 % of words
    with a letter, two stop words."""
    river = ["river", "stone"] * 24
    texts = {
        "50 words": [*river, "the", "of"],
        "49 words": [*river[1:], "the", "of"],
        "40 of 50 words with a letter": [*river[:38], "the", "of", *map(str, range(1000, 1010))],
        "39 of 50": [*river[:37], "the", "of", *map(str, range(1000, 1011))],
        "two stop words": ["the", "and", *river],
        "one stop word": ["the", "river", *river],
    }
    files = tmp_path / "web.jsonl"
    files.write_text("".join(json.dumps({"id": name, "text": " ".join(each)}) + "\n" for name, each in texts.items()))
    cleaning = load_explorer("cleaning")
    question = cleaning.ask({"data": str(files), "rules": "gopher_quality"})
    found = cleaning.answer(question)
    assert found.summary["documents kept"] == 3 / 6
    assert [row[::2] for row in found.broken.rows] == [
        ("min_words", 1), ("min_alphabetic_words", 1), ("min_stop_words", 1)
    ]  # fmt: skip
    assert cleaning.further is not None
    shown = [each.name for each in cleaning.further(question).documents.passages]
    assert "dropped, min_alphabetic_words is 0.78: 39 of 50" in shown
    assert "kept, min_alphabetic_words is 0.8: 40 of 50 words with a letter" in shown
    assert cleaning.settings is not None
    text = recipe_of("tiny", cleaning.settings(question)).text.model_copy(
        update={"sources": {"web": SourceConfig(paths=[str(files)])}}
    )
    kept = prepare(text, tmp_path / "out", workers=1).total().kept
    assert (kept.rows, kept.bytes) == (3, sum(len(" ".join(texts[name])) for name in [*texts][::2]))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"data": "no/such/folder"}, "there is no file or folder"),
        ({"moved": "max_newlines"}, "add fineweb to the rules"),
        ({"rules": ""}, "choose a set of rules"),
        ({"rules": "c4"}, "rules = c4"),
    ],
)
def test_questions_about_cleaning_that_have_no_answer(values: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        load_explorer("cleaning")(**values)


def test_experts_of_published_models() -> None:
    """Room by Fedus et al. 2021 (2101.03961), equation 3; 46.7 billion values of Mixtral 8x7B (2401.04088), of which
    32 layers of 8 experts with 3 matrices of 4096 x 14336 are divided; copies of tokens by hand."""
    tool = load_explorer("experts")
    found = tool(text="a" * 640, experts=64, active=1, capacity=1.25)
    assert found.summary["room of an expert"] == int(640 / 64 * 1.25)
    assert found.load.bars[0].total + sum(each.total for each in found.load.bars[1:]) == 640
    alone = next(row for row in found.routers.rows if row[0] == "by the byte alone")
    assert alone[1:] == pytest.approx([64, 0, 63, (640 - 12) / 640])  # equal bytes go to one expert
    question = tool.ask({"ranks": 8, "capacity": 0})
    assert tool.further is not None
    weights = {each.name: each.parts["weights"] / 4 for each in tool.further(question).memory.bars}
    divided = 32 * 8 * 3 * 4096 * 14336
    assert weights["ranks: 1"] == pytest.approx(46.7e9, rel=1e-3)
    assert weights["ranks: 1"] - weights["ranks: 8"] == pytest.approx(divided * 7 / 8)
    exchange = {row[0]: row[2] for row in tool.answer(question).exchange.rows}
    assert exchange == pytest.approx({1: 0, 2: 1 - 6 / 28, 4: 3 * (1 - 15 / 28), 8: 7 * 2 / 8})
    with pytest.raises(UsageError, match="lower ranks or raise experts"):
        tool(ranks=16)


def test_sizes_of_data_sets() -> None:
    """Twenty tokens per parameter of Chinchilla, 1.7 of GPT-3; files as the tokenizer writes them."""
    tool = load_explorer("data-sizes")
    ratios = {row[0]: row[4] for row in tool().table.rows}
    assert (ratios["Chinchilla"], ratios["GPT-3"]) == pytest.approx((20, 12 / 7))
    for entries, size in ((65_536, 2e9), (65_537, 4e9)):
        assert tool(tokens=1e9, vocabulary=entries).yours["token files of hornbook"] == size
    yours = tool(tokens=3e10, parameters=2e9).yours
    best = yours["best for the same operations: parameters"], yours["best for the same operations: tokens"]
    assert best[0] * best[1] == pytest.approx(6e19)
