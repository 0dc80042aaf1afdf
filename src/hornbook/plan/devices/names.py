"""Names of devices, as a person (`h100-80gb`, `4090`) or a driver (`NVIDIA H100 80GB HBM3`) says them.

No name is completed: an A10 is no A100, and neither a part of a device (MIG) nor a laptop's is the device.
"""

import difflib
import re
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Protocol, TypeVar


class Named(Protocol):
    """A device, as far as names tell devices apart (`hardware.Device`)."""

    @property
    def name(self) -> str: ...
    @property
    def words(self) -> tuple[str, ...]: ...
    @property
    def memory(self) -> float: ...
    @property
    def sizes(self) -> tuple[int, ...]: ...


AnyDevice = TypeVar("AnyDevice", bound=Named)
_MAKER = re.compile(r"nvidia|tesla|geforce|quadro|amd|instinct|radeon|apple|hbm2e?|hbm3e?")
"""Words of a name that do not tell devices apart."""
_SIZE = re.compile(r"([1-9][0-9]*)(?:gb|gib)")
TEMPLATE = """[[device]]
name = "{name}"
bf16 = "?"       # TFLOP/s of products, dense, summed in float32; leave out what it lacks
fp16 = "?"
fp32 = "?"       # TFLOP/s, without TF32
memory = "?"     # GiB
bandwidth = "?"  # GB/s of the memory
node = "?"       # devices of a machine
domain = "?"     # devices that a fast link joins; 1: none
link = "?"       # GB/s of a device to those of its machine, one direction
network = "?"    # GB/s of a device to other machines
hour = "?"       # dollars; leave out where it costs nothing"""
"""A device of a user's, to be filled in from its data sheet."""


def devices_named(text: str, devices: Iterable[AnyDevice]) -> list[AnyDevice]:
    """The devices of exactly this name, that of the name as a whole first. A size must be that of the memory."""
    whole, bare, sizes = key(text), key(text, sized=False), sizes_in(text)
    names = [(each, [key(name) for name in (each.name, *each.words)]) for each in devices]
    found = [each for each, keys in names if keys[0] == whole] + [each for each, keys in names if whole in keys]
    return found + [each for each, keys in names if bare in keys and all(_holds(each, size) for size in sizes)]


@cache
def key(text: str, *, sized: bool = True) -> str:
    """Letters and digits of a name without makers; sized: with sizes of memory."""
    return "".join(word for word in _words(text) if not _MAKER.fullmatch(word) and (sized or not _SIZE.fullmatch(word)))


def sizes_in(text: str) -> list[int]:
    """Sizes of memory in a name, in GB."""
    return [int(size[1]) for word in _words(text) if (size := _SIZE.fullmatch(word))]


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", re.sub(r"(?<=[0-9])\s+(?=gi?b)", "", text.lower()))


def _holds(device: Named, size: int) -> bool:
    """Whether the device is sold with so many GB, of which a process can have somewhat less."""
    return size in device.sizes or (not device.sizes and 0.9 < device.memory / size < 1.05)


def unknown_device(text: str, devices: Sequence[Named]) -> str:
    """The message for a name that is no device's: names like it, or the devices of a size."""
    sizes = sizes_in(text)
    if sizes and not key(text, sized=False):
        fitting = [each for each in devices if _holds(each, sizes[0])]
        words = f"devices with it: {', '.join(map(typed, fitting))}" if fitting else "no known device has it"
        return f"{text} is a size of memory, not a device; {words}. Write --cluster {typed((fitting or devices)[0])}"
    wanted = key(text, sized=False)
    names = {key(name): each for each in reversed(devices) for name in (*each.words, each.name)}
    close = [each for each in names if each.startswith(wanted)] + difflib.get_close_matches(wanted, names)
    meant = list({names[each].name: names[each] for each in close}.values())[:4]
    hint = f"; did you mean {_listed(meant)}?" if meant else f". Known are {_listed(sorted(devices, key=typed))}."
    return (
        f"no device {text!r}{hint} `this` is this machine. Another device is a table in a file of your own, "
        f"--hardware FILE:\n{TEMPLATE.format(name=text)}"
    )


def typed(device: Named) -> str:
    """A name as it is typed after `--cluster`: `RTX-4090`, `M1-Max-64GB`."""
    size = f"-{device.sizes[-1]}GB" if device.sizes else ""
    return device.name.replace(" ", "-") + size


def _listed(devices: Sequence[Named]) -> str:
    *first, last = map(typed, devices)
    return f"{', '.join(first)} or {last}" if first else last
