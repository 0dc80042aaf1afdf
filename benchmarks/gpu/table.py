"""The table at the end: each part with its status, its seconds and its main figures."""

from typing import Any

from benchmarks import report


def table(names: list[str], parts: dict[str, Any]) -> str:
    """Rows of the parts; one that was not begun has no seconds."""
    rows = [[name, *row(parts.get(name, {"status": "not begun"}))] for name in names]
    return report.table(["part", "status", "seconds", "figures"], rows)


def row(part: dict[str, Any]) -> list[Any]:
    """Status, seconds, figures; the reason where a part was skipped or left out."""
    status, figures = part["status"], part.get("figures", {})
    reason = {"skipped": part.get("reason"), "left out": figures.get("left_out") or figures.get("problem")}.get(status)
    return [status, part.get("seconds", ""), reason[:160].replace("\n", " ") if reason else headline(figures)]


def headline(figures: dict[str, Any]) -> str:
    """The main figures of a part, in one line."""
    words: list[str] = []
    if commands := figures.get("commands"):
        failed = [name for name, each in commands.items() if not each["ok"]]
        words.append(f"{len(commands) - len(failed)} of {len(commands)} commands passed")
        words += [f"failed: {', '.join(failed)}"] if failed else []
        words += ["replay has other bits"] if commands.get("replay gpt", {}).get("code") == 3 else []
    if "passed" in figures:
        counts = {"passed": len(figures["passed"]), "failed": len(figures["failed"]), "skipped": figures["skipped"]}
        words.append(", ".join(f"{count} {name}" for name, count in counts.items()))
    if "documents_over_whole" in figures:
        words.append(speed(figures))
    for name, each in {**figures.get("contenders", {}), **figures.get("forms", {})}.items():
        words.append(f"{name}: {measured(each)}")
    if "bits_per_byte" in figures:
        words.append(f"{figures['bits_per_byte']:.4f} bits per byte")
    return "; ".join(words)


def speed(figures: dict[str, Any]) -> str:
    """Tokens per second, MFU and peak memory of training steps."""
    rates, shares = figures["tokens_per_second"], figures["mfu_causal"] or {}
    kinds = [
        f"{kind} {rate:,.0f} tokens/s" + (f" (MFU {shares[kind]:.1%})" if shares else "")
        for kind, rate in rates.items()
    ]
    return f"{', '.join(kinds)}, peak {gigabytes(figures['peak_bytes'])}"


def measured(each: dict[str, Any]) -> str:
    """A contender's rate, or the least seconds and the memory of a form of the loss."""
    if "problem" in each:
        return "failed"
    if "tokens_per_second" in each:
        return f"{each['tokens_per_second']:,.0f} tokens/s, peak {gigabytes(each['peak_bytes'])}"
    if not each.get("seconds"):
        return "not known"
    return f"{min(each['seconds']) * 1e3:.1f} ms, {gigabytes(each['above_bytes'])}"


def gigabytes(count: float | None) -> str:
    """Bytes as GB."""
    return "not known" if count is None else f"{count / 1e9:.2f} GB"
