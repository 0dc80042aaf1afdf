"""The words in which tables of Hugging Face architectures are written: `Key`, `Codec`, `Row`, `Architecture`.

Reading and writing are the same table walked in two directions. To add an architecture: a table in a `.toml` file of
this folder, as `hornbook.model.hf.tables.known` says.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from hornbook.model.config.model_config import ModelConfig

Json = dict[str, Any]


@dataclass(frozen=True)
class Key:
    """One key of config.json and the dotted keys of `ModelConfig` it sets (all must agree to be written)."""

    theirs: str
    ours: Sequence[str]
    default: Any = None
    """What transformers takes when the key is absent; None leaves our default, which means the same."""
    values: Mapping[Any, Any] = field(default_factory=dict)
    """Their spelling of a value -> ours; the first spelling of a value is the one written."""
    also: Sequence[str] = ()
    """Keys that must say the same, and are written too (BART's two stacks)."""
    aliases: Sequence[str] = ()
    """Older names of the key, read where it is absent."""
    off: bool = False
    """Whether null switches it off, instead of leaving the default."""


class Codec(NamedTuple):
    """Keys of config.json that say together what ours say in another way: a function in each direction."""

    theirs: tuple[str, ...]
    """Keys it reads."""
    read: Callable[[Json, Json], None]
    """(Their keys, our keys as a tree, to which it adds)."""
    write: Callable[[ModelConfig], Json]
    """Their keys. Where they cannot say it, reading them back gives something else, and the table does not fit."""


Form = Literal["same", "transposed", "heads", "row"]


@dataclass(frozen=True)
class Row:
    """One of our tensors inside one of theirs; `{i}` is the layer, `{e}` the expert, where theirs are apart."""

    ours: str
    theirs: str
    form: Form = "same"
    """`transposed`: theirs is [in, out] (GPT-2's Conv1D) where ours is [out, in]. `heads`: parts alternate head by head
    instead of one after the other (GPT-NeoX: q, k, v of head 0, of head 1, ...). `row`: theirs is [1, n], ours [n]."""
    part: int = 0
    """Place among several of ours that theirs holds side by side along the output dim."""
    beside: str = ""
    """The row holds in models that have this tensor of ours too; it goes before one that holds always."""


@dataclass(frozen=True)
class Architecture:
    """One class of transformers."""

    name: str
    model_type: str
    prefix: str
    """First part of most tensor names; files of the bare model (GPT-2 on the hub) lack it."""
    keys: Sequence[Key]
    requires: Mapping[str, Any]
    """Dotted keys of `ModelConfig` that have one value here."""
    rows: Sequence[Row]
    codecs: Sequence[Codec] = ()
    constant: Mapping[str, Any] = field(default_factory=dict)
    """Keys of config.json for which only one value is understood; absent means this value."""
    inert: Sequence[str] = ()
    """Keys that change no logits here, besides those of `inert.toml`."""
    whole_heads: bool = False
    """Whether it refuses a width that does not divide into heads."""
    dropout: Sequence[str] = ()
    """Keys that `ModelConfig.dropout` is written to. They matter to training only and are not read."""
    attention_dropout: Sequence[str] = ("attention_dropout",)
    """The same for dropout of attention probabilities."""
    std: str | None = "initializer_range"
    """The same for the standard deviation of initial values."""
    buffers: Sequence[str] = ()
    """Globs of tensors in older files that are no parameters."""
    copies: Mapping[str, str] = field(default_factory=dict)
    """Tensors that may be stored although they are tied, and which one they then repeat."""
    older: Mapping[str, str] = field(default_factory=dict)
    """Endings of names in older files -> today's."""
    unused: Sequence[str] = ()
    """Globs of tensors that belong to other heads: the class itself leaves them out when it loads a file."""
    position_ids: Literal["from 0", "from offset"] | None = "from 0"
    """What its argument `position_ids` counts from; None: it has none, positions are counted from the row's begin."""
    decoder_start: Literal["pad_token_id", "eos_token_id"] | None = None
    """Which token an encoder-decoder's decoder begins with."""
    head_by_file: bool = False
    """Whether the head is tied is said by the file, which holds one or not (T5)."""


ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "relu": "relu",
    "relu2": "relu2",
    "silu": "silu",
    "swish": "silu",
}
"""Their names of activations -> ours."""
