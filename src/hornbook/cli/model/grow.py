"""`hornbook grow`: copy a model with more or fewer layers, or with experts."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from hornbook.cli.model.out_folder import check_free, new_model, report_text, tell_left_out, with_tokenizer
from hornbook.cli.result import Result
from hornbook.cli.shell import DryRun
from hornbook.errors import UsageError

if TYPE_CHECKING:
    from hornbook.model.config.model_config import ModelConfig


def grow(
    target: Annotated[
        Path,
        typer.Argument(metavar="RUN|CHECKPOINT", help="A run (its newest checkpoint), a checkpoint or an HF folder."),
    ],
    *,
    out: Annotated[Path, typer.Option(metavar="CHECKPOINT", help="Folder to write; new or empty.")],
    layers: Annotated[int | None, typer.Option(min=1, help="Layers of the new model.")] = None,
    encoder_layers: Annotated[
        int | None, typer.Option(min=1, help="Layers of the encoder of an encoder-decoder.")
    ] = None,
    order: Annotated[
        Literal["stack", "spread"],
        typer.Option(help="stack: repeat the whole stack. spread: put copies next to their originals."),
    ] = "stack",
    identity: Annotated[
        bool, typer.Option("--identity/--copies", help="Added layers are identities at first, or plain copies.")
    ] = True,
    experts: Annotated[int | None, typer.Option(min=2, help="Turn each MLP into experts, copies of it.")] = None,
    active: Annotated[int, typer.Option(min=1, help="Experts used by each token.")] = 2,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the experts' routers.")] = 1,
    dry_run: DryRun = False,
) -> Result:
    """Make a copy of a model with more or fewer layers, or with experts, to start `hornbook train --from` with."""
    from hornbook.model.config.mlp_config import ExpertsConfig
    from hornbook.model.hf.hf import write_hf
    from hornbook.model.surgery.folders import decoder_start_of, read_merged
    from hornbook.model.surgery.grow import preserves, regrow, resized, upcycle, upcycled
    from hornbook.run.checkpoints.find_checkpoint import checkpoint_path

    if layers is None and encoder_layers is None and experts is None:
        raise UsageError("there is nothing to change: give --layers, --encoder-layers or --experts")
    folder = checkpoint_path(target)
    old, vocab, stream, tokenizer = read_merged(folder)
    check_free(out)
    deep = resized(old, layers or old.layers, encoder_layers, order)
    tensors = regrow(stream, old, deep, order, identity=identity)
    same, new = identity or (deep.layers, deep.encoder.layers) == (old.layers, old.encoder.layers), deep
    if experts is not None:
        part = ExpertsConfig(count=experts, active=active)
        new, same = upcycled(deep, part), same and preserves(part)
        tensors = upcycle(tensors, new, vocab, seed)
    same = same and deep.layers >= old.layers and deep.encoder.layers >= old.encoder.layers
    report: dict[str, Any] = {"source": str(folder), "out": str(out), "model": new.model_dump(mode="json")}
    tell_left_out(folder, report)
    report |= {"computes_the_same": same}
    if dry_run:
        return Result(report | {"dry_run": True}, f"would write {out}: {_shape(new)}; nothing written")
    with new_model(out, "grow", folder, report) as partial:
        write_hf(partial, tensors, new, vocab, with_tokenizer(tokenizer), decoder_start=decoder_start_of(folder))
    says = "it computes the same as the original" if same else "it does not compute the same as the original"
    return Result(report, report_text(out, report["files"], f"{_shape(new)}; {says}"))


def _shape(cfg: "ModelConfig") -> str:
    beside = f" and {cfg.encoder.layers} of the encoder" if cfg.kind == "encoder_decoder" else ""
    return f"{cfg.layers} layers{beside}, width {cfg.width}, MLP {cfg.mlp.kind}"
