"""The layout of `--help`, and the examples at its end: command lines to copy."""

from typing import Any

from typer.core import TyperCommand

EXAMPLES = {
    "prepare": (
        "hornbook prepare my-texts --out data/mine",
        "hornbook prepare reviews.csv --text-field body --out data/reviews",
    ),
    "tokenize": (
        "hornbook tokenize data/mine --vocab 16k",
        "hornbook tokenize data/mine --tokenizer base/tokenizer.json",
    ),
    "train": (
        "hornbook train tiny --data data/mine --out runs/mine",
        "hornbook train tiny --data data/mine --from base --out runs/tuned --optim.lr 1e-4",
    ),
    "resume": (
        "hornbook resume runs/mine",
        "hornbook resume runs/mine --train.epochs 2",
    ),
    "fork": ("hornbook fork runs/mine --at 100 --out runs/other --optim.lr 1e-3",),
    "eval": (
        "hornbook eval runs/mine --baselines",
        "hornbook eval my-model --data held-out.txt",
    ),
    "generate": (
        'hornbook generate runs/mine -p "Once upon a time"',
        "hornbook generate my-model --greedy < prompts.txt",
    ),
    "chat": (
        "hornbook chat runs/mine",
        'hornbook chat my-model --system "Answer in one sentence." --temperature 0.5',
    ),
    "predict": (
        "hornbook predict runs/labels texts.txt",
        "hornbook predict runs/labels rows.jsonl --json > answers.jsonl",
    ),
    "runs plot": (
        "hornbook runs plot runs/mine --out loss.svg",
        "hornbook runs plot runs/mine runs/other --out runs.html --x tokens",
    ),
    "import": (
        "hf download openai-community/gpt2 --local-dir gpt2",
        "hornbook import gpt2 --out base",
    ),
    "export": (
        "hornbook export runs/mine --out my-model",
        "hornbook export runs/mine --quantize int8 --out my-model-int8",
    ),
}
"""Command -> example command lines, with the folders of the README."""


class ExampleCommand(TyperCommand):
    """A command whose `--help` ends with examples."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:  # noqa: ARG002
        """Options, then arguments."""
        return ["[OPTIONS]", *(_usage(param) for param in self.params if param.param_type_name == "argument")]

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """The usual help, then what `format_more` adds, then examples."""
        super().format_help(ctx, formatter)
        self.format_more(ctx, formatter)
        if lines := EXAMPLES.get(ctx.info_name or ""):
            with formatter.section("Examples"):
                formatter.write("".join(f"  {line}\n" for line in lines))

    def format_more(self, ctx: Any, formatter: Any) -> None:
        """Write what comes between options and examples."""


def _usage(argument: Any) -> str:
    """`RUN`, `[RUN]`, `RUN...` or `[RUN]...`; a metavar of several words is a usage line itself."""
    metavar = str(argument.metavar or argument.name.upper())
    if " " in metavar:
        return metavar
    return f"{metavar if argument.required else f'[{metavar}]'}{'...' if argument.nargs == -1 else ''}"
