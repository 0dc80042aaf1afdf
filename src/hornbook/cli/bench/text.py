"""The tables of `hornbook bench` for people."""

from collections.abc import Mapping, Sequence
from typing import Any

from hornbook.cli.result import columns
from hornbook.progress import size_text

_BAR = 30
_PHASES = {
    "data": "waiting for data",
    "forward": "forward",
    "backward": "backward",
    "communication": "communication",
    "optimizer": "clip and optimizer",
    "host": "host gap",
}
"""Phase -> text, in the order of the table."""


def rate_text(rate: float) -> str:
    """Operations per second: `191 GFLOP/s`."""
    for unit, size in (("PFLOP/s", 1e15), ("TFLOP/s", 1e12)):
        if rate >= size:
            return f"{rate / size:.3g} {unit}"
    return f"{rate / 1e9:,.0f} GFLOP/s"


def seconds_text(seconds: float) -> str:
    """`1.23 s`, `45.6 ms`, `12.3 us`."""
    if seconds >= 1:
        return f"{seconds:,.3g} s" if seconds < 1000 else f"{seconds:,.0f} s"
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} us"


def percent(share: float) -> str:
    """`12.3 %`."""
    return f"{100 * share:.1f} %"


def machine_text(found: Mapping[str, Any]) -> str:
    """What the machine can do."""
    products = ", ".join(f"{name} {rate_text(rate * 1e9)}" for name, rate in found["products"].items())
    widened = "".join(f", {name} as fp32" for name in found["widened"])
    disk = found["disk"]
    return "\n".join(
        [
            f"machine      {found['device']}",
            f"products     {products}{widened}",
            f"memory       {found['memory_bandwidth']:,.1f} GB/s copied (read and written)",
            f"disk         {disk['write']:,.0f} MB/s written, {disk['read']:,.0f} MB/s read, "
            f"fsync {disk['fsync_ms']:.1f} ms",
        ]
    )


def step_text(found: Mapping[str, Any]) -> str:
    """The bill of a step."""
    ranks = f"{found['ranks']} rank{'s' if found['ranks'] > 1 else ''}"
    lines = [
        f"recipe       {found['recipe']}: {found['parameters']:,} parameters, {found['precision']}, {ranks}",
        f"data         {found['data']}",
        f"step         {_measured(found)}",
        "",
        _shares(found),
        *_traffic(found),
        "",
        f"throughput   {found['tokens_per_second']:,.0f} tokens/s",
        *_utilisation(found),
        _memory(found["memory"]),
        f"energy       {_energy(found)}",
        *[f"all-reduce   {_collectives(found['collectives'])}" for _ in found["collectives"][:1]],
    ]
    return "\n".join(lines)


def _measured(found: Mapping[str, Any]) -> str:
    count, whole = found["measured_microbatches"], found["microbatches"]
    spread = f"+- {percent(found['spread'])}"
    text = f"{found['step_tokens']:,} tokens in {seconds_text(found['seconds'])} {spread} (median of 5, half the range)"
    if count == whole:
        return text
    total = seconds_text(sum(found["whole_step"].values()))
    return (
        f"{text}: {count} of {whole:,} microbatches\n"
        f"{'':<13}the whole step of {found['batch_tokens']:,} tokens is reckoned from it: {total}"
    )


def _shares(found: Mapping[str, Any]) -> str:
    phases = found["whole_step"]
    total = sum(phases.values())
    shown = [name for name in _PHASES if name != "communication" or found["ranks"] > 1]
    rows = [["where the time goes", "share", "seconds", ""]]
    for name in shown:
        share = phases[name] / total
        rows.append(
            [_PHASES[name], f"{percent(share):>7}", f"{seconds_text(phases[name]):>8}", "#" * round(_BAR * share)]
        )
    rows.append(["step", f"{percent(1.0):>7}", f"{seconds_text(total):>8}", ""])
    return columns(rows)


def _traffic(found: Mapping[str, Any]) -> list[str]:
    """What crosses ranks in the step that was measured."""
    sent = found["communication"]
    if sent is None:
        return []
    rows = [["between ranks", "sent by a rank", "calls", "in flight", "waited"]]
    for each in sent["flows"]:
        times = [seconds_text(each["seconds"]), seconds_text(each["waited"])]
        rows.append([f"{each['axis']}: {each['kind']}", size_text(each["bytes"]), f"{each['calls']:g}", *times])
    total = size_text(sum(each["bytes"] for each in sent["flows"]))
    rows.append(["together", total, "", seconds_text(sent["seconds"]), seconds_text(sent["waited"])])
    hidden = "" if sent["hidden"] is None else f"overlap      {percent(sent['hidden'])} hidden behind computing"
    return ["", columns(rows), *filter(None, [hidden])]


def _utilisation(found: Mapping[str, Any]) -> list[str]:
    achieved = rate_text(found["operations"]["causal"] / found["seconds"])
    if found["mfu"] is None:
        return [f"rate         {achieved}; no MFU: the peak of {found['device']} is not known"]
    mfu, peak, devices = found["mfu"], found["peak"], found["devices"]
    of = f"{devices} x {rate_text(peak['rate'])}" if devices > 1 else rate_text(peak["rate"])
    return [
        f"MFU          {percent(mfu['causal'])} (causal: pairs that see each other): "
        f"{achieved} of {of}, {peak['source']}",
        f"             {percent(mfu['palm'])} (PaLM: all pairs, 12 L H d s a token)",
        f"HFU          {percent(found['hfu'])} (with what is computed again in backward)",
    ]


def _memory(found: Mapping[str, int]) -> str:
    names = ("parameters", "gradients", "optimizer", "activations", "rest")
    parts = ", ".join(f"{name} {size_text(found[name])}" for name in names)
    before = f", {size_text(found['before'])} before the model" if found["before"] else ""
    return f"memory       peak {size_text(found['peak'])}: {parts}{before}"


def _energy(found: Mapping[str, Any]) -> str:
    energy = found["energy"]
    if energy["joules"] is None:
        return energy["source"]
    tokens = found["step_tokens"] * 5
    return f"{energy['joules'] / tokens * 1e3:,.3g} mJ a token ({energy['source']})"


def _collectives(found: Sequence[Mapping[str, float]]) -> str:
    return ", ".join(
        f"{size_text(int(each['bytes']))} in {seconds_text(each['seconds'])} ({each['bus_rate']:,.0f} MB/s of the bus)"
        for each in found
    )


def loader_text(found: Mapping[str, Any], step: Mapping[str, Any]) -> str:
    """The rate of the loader beside the need of the step."""
    rate, need = found["loader_tokens_per_second"], step["tokens_per_second"]
    ratio = rate / need
    verdict = "it keeps up" if ratio > 1 else "the step waits for it"
    return "\n".join(
        [
            f"data         {found['data']}",
            f"loader       {rate:,.0f} tokens/s in one thread, +- {percent(found['spread'])} "
            f"over {found['batches']:,} batches",
            f"             the first one, of {found['batch_tokens']:,} tokens, took "
            f"{seconds_text(found['first_seconds'])}: it maps and compares the shards",
            f"the step     needs {need:,.0f} tokens/s: the loader makes {ratio:,.3g} x that, so {verdict}",
        ]
    )


def accumulation_text(found: Mapping[str, Any]) -> str:
    """What accumulating over ragged microbatches changes, rightly weighted and not."""
    sizes = " + ".join(f"{each['rows']:,} ({each['targets']:,.0f} targets)" for each in found["microbatches"])
    right, wrong = found["right"], found["mean_of_means"]
    rows = [
        [f"{found['rows']} rows, {found['targets']:,.0f} targets, {found['precision']}", "loss", "gradients apart"],
        ["one big batch", f"{found['loss']:.7f}", ""],
        ["microbatches weighted by targets (hornbook)", f"{right['loss']:.7f}", f"{right['distance']:.2e}"],
        ["mean of the microbatches' means", f"{wrong['loss']:.7f}", f"{wrong['distance']:.2e}"],
    ]
    return f"microbatches of {sizes} rows\n\n{columns(rows)}"
