"""The command and the functions behind it: hardware, collectives, time, exit codes."""

import json
import re
import subprocess
import sys

import pytest

from hornbook.cli.main import main
from hornbook.errors import Exit, UsageError
from hornbook.model.config.flops import block_costs, step_operations
from hornbook.model.config.part import method
from hornbook.parallel.axes.pipeline.pass_orders import Schedule, bubble, plan, simulate
from hornbook.plan.devices import hardware
from hornbook.plan.devices.collective_times import Group, group
from hornbook.plan.devices.device_rates import rates_of
from hornbook.plan.devices.hardware import Cluster, cpu_threads, known_devices, parse_cluster, this_cpu
from hornbook.plan.planner import plan_run
from hornbook.plan.search.plan_result import SAME, Plan
from hornbook.plan.step_time import estimate_step
from hornbook.plan.update_work import attention_work, block_work
from hornbook.settings.recipe_files import shipped_recipes
from hornbook.settings.resolve import resolve


@pytest.mark.parametrize(
    ("text", "count", "node", "name"),
    [
        ("8xH100", 8, 8, "H100 SXM"),
        ("64x8xH100", 512, 8, "H100 SXM"),
        ("H200", 1, 1, "H200 SXM"),
        ("a100-40gb", 1, 1, "A100 40GB"),
        ("2xA100-80GB", 2, 2, "A100"),
        ("18x4xGB200", 72, 4, "GB200"),
        ("16xRTX4090", 16, 8, "RTX 4090"),
    ],
)
def test_clusters_are_read(text: str, count: int, node: int, name: str) -> None:
    found = parse_cluster(text)
    assert (found.count, found.node, found.device.name) == (count, node, name)


def test_machines_like_this_one(monkeypatch: pytest.MonkeyPatch) -> None:
    here = parse_cluster("2xH100").model_copy(update={"machine": "NVIDIA H100"})
    monkeypatch.setattr(hardware, "this_cluster", lambda: here)
    sizes = {text: parse_cluster(text) for text in ("this", "4xthis", "2x4xthis")}
    assert {text: (each.count, each.node) for text, each in sizes.items()} == {
        "this": (2, 2),
        "4xthis": (4, 2),
        "2x4xthis": (8, 4),
    }
    monkeypatch.setattr(hardware, "this_cluster", lambda: Cluster(device=this_cpu()))
    assert parse_cluster("4xthis").count == 4
    with pytest.raises(UsageError, match="4xthis are ranks here"):
        parse_cluster("2x4xthis")


def test_a_precision_that_a_device_lacks_has_no_rate() -> None:
    rates = {name: parse_cluster("B200").device.rate(name) for name in ("bf16", "float8", "mxfp8", "nvfp4")}
    assert rates == {"bf16": 2.25e15, "float8": 4.5e15, "mxfp8": 4.5e15, "nvfp4": 9e15}
    for device, precision in (("A100", "float8"), ("H100", "mxfp8"), ("H100", "nvfp4"), ("MI300X", "nvfp4")):
        with pytest.raises(UsageError, match=precision):
            parse_cluster(device).device.rate(precision)
    assert parse_cluster("T4").device.rate("bf16") == parse_cluster("T4").device.rate("fp16")


@pytest.mark.parametrize(("text", "domain"), [("64x4xH100", 4), ("64x8xH100", 8), ("18x4xGB200", 72), ("8xL40S", 1)])
def test_a_fast_link_ends_at_the_machine_unless_it_joins_a_rack(text: str, domain: int) -> None:
    assert parse_cluster(text).domain == domain


@pytest.mark.parametrize("text", ["0xH100", "8x0xH100", "-8xH100", "8xH900", "8", "x8", ""])
def test_other_clusters_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--cluster"):
        parse_cluster(text)


def test_every_device_says_where_its_figures_are_from() -> None:
    assert len({each.name for each in known_devices()}) == len(known_devices()) >= 20
    for each in known_devices():
        assert each.source
        assert min(each.link, each.network, each.rate("fp16")) > 0
        assert each.watts > 0 or each.sizes  # Apple publishes none
        assert each.domain <= 72
    wanted = "V100 SXM2, A100 40GB, A100, H100 SXM, H200 SXM, B200, GB200, B300, GB300, MI300X, MI325X, MI355X, L40S"
    assert {*wanted.split(", "), "RTX 4090"} <= {each.name for each in known_devices()}


def test_a_cpu_is_what_bench_measured(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    monkeypatch.setenv("HORNBOOK_HOME", str(tmp_path))
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    info = tmp_path / "cpuinfo"
    info.write_text("model name\t: Foo 9\ncpu MHz\t: 2000.0\nflags\t: fpu avx2\n")
    assert this_cpu(info).fp32 == pytest.approx(0.6 * 2 * 2e9 * 8 * 4 / 1e12)
    folder = tmp_path / "bench" / "Foo-9-AVX2-2-threads"
    folder.mkdir(parents=True)
    found = {"format": 1, "products": {"fp32": 150.0, "bf16": 300.0}, "memory_bandwidth": 30.0}
    (folder / "machine.json").write_text(json.dumps(found))
    cpu = this_cpu(info)
    assert (cpu.fp32, cpu.bf16, cpu.bandwidth) == (0.15, 0.3, 30.0)


@pytest.mark.parametrize(("text", "threads"), [("3", 3), ("3,2", 3), ("0", None), ("-1", None), ("many", None)])
def test_threads_are_those_of_the_environment(monkeypatch: pytest.MonkeyPatch, text: str, threads: int | None) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    cores = cpu_threads()
    monkeypatch.setenv("OMP_NUM_THREADS", text)
    assert cpu_threads() == (threads or cores)


def test_ranks_on_a_cpu_share_its_cores_and_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    cores = this_cpu().cores
    recipe = resolve("tiny", [f"train.batch_tokens={512 * 12 * cores}", "train.micro_batch=1"], environ={}).recipe

    def plan(ranks: int) -> Plan:
        own = recipe.model_copy(update={"parallel": recipe.parallel.model_copy(update={"data": ranks})})
        return plan_run(own, parse_cluster("this"))

    one, some, many = plan(1), plan(cores), plan(4 * cores)
    assert many.cluster.count == 4 * cores
    assert one.best.step.compute > some.best.step.compute
    assert many.best.step.compute > 0.6 * some.best.step.compute  # a quarter, if each had a core of its own
    assert any("share" in text for text in many.warnings)
    assert not any("share" in text for text in some.warnings)


# ---- Products, collectives


@pytest.mark.parametrize("name", shipped_recipes())
def test_products_of_parts_are_their_weights(name: str) -> None:
    model = resolve(name, environ={}).recipe.model
    for number in range(model.layers):
        layer = model.layer(number)
        for part in (layer.attention, layer.mlp):
            found = sum(each.inner * each.columns * each.uses for each in method(part, "products")(layer))
            assert found == method(part, "num_matmul_weights")(layer)


@pytest.mark.parametrize(
    "words",
    [
        ["model.attention=latent"],
        ["model.attention=latent", "model.attention.query_rank=none"],
        ["model.attention=delta"],
        ["model.mlp=experts", "model.mlp.shared_hidden=64"],
        ["model.mlp=mlp"],
    ],
)
def test_products_of_every_kind_of_part(words: list[str]) -> None:
    model = resolve(None, ["model.width=64", "model.heads=4", *words], environ={}).recipe.model
    for part in (model.attention, model.mlp):
        assert sum(each.inner * each.columns * each.uses for each in part.products(model)) == (
            part.num_matmul_weights(model)
        )


def test_work_of_blocks_is_the_operations_of_a_step() -> None:
    recipe = resolve("llama-1b", environ={}).recipe
    costs, _ = block_costs(recipe.model, 128256, 2048)
    layer = recipe.model.layer(0)
    work = block_work(layer, 2048, 2, 1, attention_work(layer, 2048, 2048, 2))
    assert 3 * (work.products + work.attention) == pytest.approx(costs[0] * 2048)


def test_a_ring_moves_all_bytes_but_one_part() -> None:
    ring = Group(8, 8, 1e9, 1e9, 1e9)
    assert ring.gather(8e9) - ring.latency == pytest.approx(7.0)
    assert ring.all_reduce(8e9) == 2 * ring.gather(8e9)
    assert Group(1, 1, 1e9, 1e9, 1e9).all_reduce(1e9) == 0


def test_groups_across_machines_share_their_network_cards() -> None:
    cluster = parse_cluster("4x8xH100")
    assert group(cluster, 8, 1, 400e9, 40e9).bandwidth == 400e9
    assert group(cluster, 4, 8, 400e9, 40e9).bandwidth == 40e9
    assert group(cluster, 32, 1, 400e9, 40e9).bandwidth == 320e9


# ---- Time


def step(*words: str, cluster: str = "8xH100"):
    recipe = resolve("llama-1b", ["train.precision=bf16", *words], environ={}).recipe
    return estimate_step(recipe, 128256, parse_cluster(cluster))


def test_no_step_is_faster_than_the_peak() -> None:
    recipe = resolve("llama-1b", ["train.precision=bf16"], environ={}).recipe
    done = step_operations(recipe.model, 128256, recipe.train.sequence, (recipe.train.batch_tokens, 0))
    for name in ("H100", "A100", "B200", "MI300X"):
        cluster = parse_cluster(name)
        found = estimate_step(recipe, 128256, cluster)
        assert found.compute > done.causal / cluster.device.rate("bf16")
        assert rates_of(cluster.device, "bf16").products < cluster.device.rate("bf16")


def test_parts_of_a_step() -> None:
    plain, again = (
        step("parallel.data=8", "parallel.recompute=none"),
        step("parallel.data=8", "parallel.recompute=block"),
    )
    assert plain.recompute == 0 < again.recompute < plain.compute / 2
    assert plain.tensor == plain.bubble == 0 < plain.data
    assert step("parallel.data=1", "parallel.tensor=8", "parallel.recompute=none").tensor > 0
    assert plain.compute * 8 == pytest.approx(step("parallel.recompute=none").compute, rel=0.01)


def test_a_pipeline_waits_as_its_formula_says() -> None:
    """Even stages without a head: 15 of 16 blocks are alike, and (p - 1) / m of a step is idle."""
    words = ["model.layers=16", "model.width=2048", "parallel.pipeline=4", "train.micro_batch=16"]
    words += ["train.batch_tokens=1048576"]
    recipe = resolve(
        "tiny",
        [*words, "model.vocab=64", "model.position.length=512", "train.sequence=512", "train.precision=bf16"],
        {},
    ).recipe
    found = estimate_step(recipe, 64, parse_cluster("4xH100"))
    microbatches = 1048576 // 512 // 16
    assert found.bubble == pytest.approx(3 / microbatches * (found.compute + found.tensor), rel=0.15)


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1", "zbv", "dualpipev"])
def test_a_long_step_waits_as_a_simulation_of_all_its_microbatches_does(schedule: Schedule) -> None:
    """Passes of a microbatch: forward a third, the two parts of backward as much each, near enough for the bubble."""
    words = ["model.layers=16", "model.width=2048", "model.vocab=64", "train.sequence=512", "train.micro_batch=16"]
    words += [f"parallel.pipeline={{stages = 4, schedule = '{schedule}'}}", "train.batch_tokens=131072"]
    recipe, count = resolve("tiny", [*words, "model.position.length=512", "train.precision=bf16"], {}).recipe, 16
    found = estimate_step(recipe, 64, parse_cluster("4xH100"))
    timed = simulate(plan(schedule, 4, recipe.parallel.pipeline.chunks_per_rank, count))
    assert found.bubble / (found.compute + found.tensor) == pytest.approx(bubble(timed), rel=0.25)


def test_a_batch_beyond_the_critical_one_wastes_text() -> None:
    """Kaplan et al., arXiv 2001.08361: 2e8 tokens over the loss to the power of 1 / 0.21 (equation 1.4). By the joint
    fit of table 2, 7 B parameters and 15 T tokens end at 2.00 nats: 7.4 million."""

    def said(name: str, *words: str) -> list[str]:
        plan = plan_run(resolve(name, words, environ={}).recipe, parse_cluster("64x8xH100"))
        return [each for each in plan.warnings if "critical" in each]

    (text,) = said("llama-3-8b")
    assert re.search(r"of 16,777,216 tokens is beyond the critical one of about 7,35\d,\d+ \(Kaplan", text)
    assert "--train.batch_tokens 4194304" in text
    assert not said("llama-3-8b", "train.batch_tokens=4Mi", "train.ramp.kind=none")
    assert not said("llama-1b")
    assert not said("llama-3-8b", 'surgery=["lora"]')


@pytest.mark.parametrize("name", shipped_recipes())
def test_every_recipe_has_a_plan(name: str) -> None:
    """A part that does not say what it keeps, or of which a rank's share is not known, fails here."""
    recipe = resolve(name, environ={}).recipe
    found = plan_run(recipe, parse_cluster("64xB200"))
    assert 0 < found.best.mfu < 1
    assert found.best.worst.peak.weights >= 4 * found.parameters


# ---- The command


def planned(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(["plan", *words])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def test_a_plan_of_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = planned(capsys, "tiny")
    assert code == Exit.DONE
    assert re.search(r"^> one rank +16 +none", out, re.MULTILINE)
    assert "4.26 M parameters" in out


def test_layouts_that_fill_a_cluster_are_compared(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = planned(capsys, "llama-1b", "--cluster", "8xH100", "--json")
    found = json.loads(out)
    assert code == Exit.DONE
    assert len(found["layouts"]) > 3
    times = [each["step_seconds"] for each in found["layouts"]]
    assert times[1:] == sorted(times[1:])
    assert times[0] <= SAME * min(times)
    best = found["layouts"][0]
    assert best["fits"]
    assert 0.2 < best["mfu"] < best["mfu_palm"] < 0.75
    assert best["dollars"] == pytest.approx(best["seconds"] / 3600 * 8 * found["price"])


def test_what_does_not_fit_names_the_smallest_cluster(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = planned(capsys, "llama-65b", "--cluster", "8xA100", "--json")
    remedy = json.loads(out)["remedy"]
    assert code == Exit.DOES_NOT_FIT
    assert f"fits on {remedy}" not in err  # notes are for people, without --json
    assert parse_cluster(remedy).count > 8
    assert plan_run(resolve("llama-65b", environ={}).recipe, parse_cluster(remedy), search=True).best.fits


def test_an_unknown_device_is_refused_with_those_that_are_known(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = planned(capsys, "tiny", "--cluster", "8xH900")
    assert code == Exit.USAGE
    assert "no device 'H900'; did you mean H800" in err


def test_ranks_that_do_not_fill_the_cluster_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = planned(capsys, "llama-1b", "--cluster", "8xH100", "--parallel.data", "4")
    assert code == Exit.USAGE
    assert "--cluster has 8 devices" in err


def test_a_price_of_the_users_own(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("llama-1b", "--cluster", "8xB200", "--json")
    assert json.loads(planned(capsys, *words)[1])["layouts"][0]["dollars"] is None
    assert json.loads(planned(capsys, *words, "--price", "5")[1])["layouts"][0]["dollars"] > 0


def test_an_explanation_has_phases_and_parts(capsys: pytest.CaptureFixture[str]) -> None:
    out = planned(capsys, "llama-1b", "--cluster", "8xH100", "--explain")[1]
    assert re.search(r"^GiB by phase +loss +backward +update", out, re.MULTILINE)
    assert "HFU" in out


def test_planning_imports_no_engine() -> None:
    code = "from hornbook.cli.main import main; import sys; main(['plan', 'llama-1b', '--cluster', '8xH100'])"
    heavy = "torch", "numpy", "pyarrow", "numba", "tokenizers"
    ran = subprocess.run(
        [sys.executable, "-c", f"{code}; assert not {{*{heavy!r}}} & {{*sys.modules}}, 'engine'"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
