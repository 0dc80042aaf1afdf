"""The other forms of `hornbook export`: an adapter folder for peft, and a quantized model in our own format."""

from pathlib import Path
from typing import Any

from hornbook.cli.result import Result
from hornbook.cli.train.training import use_command
from hornbook.errors import UsageError


def export_adapter(folder: Path, out: Path, *, dry_run: bool) -> Result:
    """Write the adapter of a run or checkpoint as a folder of its own, which names the path of its base."""
    from hornbook.cli.model.out_folder import new_model, report_text
    from hornbook.model.surgery.adapters.files import AdapterSpec, adapter_config, is_adapter, read_meta, write_adapter
    from hornbook.model.surgery.folders import read_operated

    if not is_adapter(folder):
        raise UsageError(
            f"{folder} holds no adapter: --to peft exports one that --surgery lora, dora or prompt trained"
        )
    found = read_operated(folder)
    digest = read_meta(folder).base_digest or ""
    spec = AdapterSpec(found.config, found.vocab, found.steps, str(found.base_folder), digest)
    if fused := adapter_config(spec).get("rank_pattern"):
        raise UsageError(
            f"{folder}: transformers stores several of the adapted layers in one matrix ({', '.join(fused)}). A LoRA "
            f"of rank {max(fused.values())} there computes the same, but trains as another model: leave out --to peft "
            "to merge the adapter"
        )
    report: dict[str, Any] = {"checkpoint": str(folder), "out": str(out), "base": str(found.base_folder)}
    if dry_run:
        text = f"would write the adapter of {folder} to {out}; nothing written"
        return Result(report | {"dry_run": True}, text)
    with new_model(out, "export", folder, report) as partial:
        write_adapter(partial, spec, found.added or {}, folder if (folder / "tokenizer.json").exists() else None)
    last = f"base {found.base_folder}; peft.PeftModel.from_pretrained(base, {str(out)!r}) loads it"
    next_line = f"next: {use_command(found.config.head.kind, str(out))}"
    return Result(report, report_text(out, report["files"], last), notes=[next_line])


def export_quantized(folder: Path, out: Path, form: str, *, dry_run: bool) -> Result:
    """Write a model with quantized weights in its blocks; eval and generate read it."""
    from hornbook.cli.model.out_folder import new_model, report_text
    from hornbook.model.build import build_model
    from hornbook.model.surgery.folders import decoder_start_of, read_merged
    from hornbook.model.surgery.operate import fill
    from hornbook.model.surgery.quantization.quantize import parse_format, quantize_model, write_quantized

    step = parse_format(form)
    config, vocab, stream, tokenizer = read_merged(folder)
    model = fill(build_model(config, vocab, "meta"), stream, None)
    change = quantize_model(model, step)
    report: dict[str, Any] = {
        "checkpoint": str(folder),
        "out": str(out),
        "quantize": step.model_dump(mode="json"),
        "layers": change.layers,
        "bytes_before": change.bytes_before,
        "bytes_after": change.bytes_after,
        "relative_error": change.error,
    }
    sizes = f"{change.bytes_before / 1e6:,.1f} MB as float32, {change.bytes_after / 1e6:,.1f} MB as {form}"
    last = f"{change.layers} layers, {sizes}; rounding changed the weights by {change.error:.2%} (relative L2 norm)"
    if dry_run:
        return Result(report | {"dry_run": True}, f"would write {out}: {last}; nothing written")
    with new_model(out, "export", folder, report) as partial:
        with_tokenizer = tokenizer if (tokenizer / "tokenizer.json").exists() else None
        write_quantized(partial, model, config, vocab, step, with_tokenizer, decoder_start_of(folder))
    next_line = f"next: {use_command(config.head.kind, str(out))}"
    return Result(report, report_text(out, report["files"], last), notes=[next_line])
