"""State of one optimizer as the state of another, for a change of optimizer while a run trains."""

from hornbook.optim.optimizer import Optimizer


def convert_state(old: Optimizer, new: Optimizer) -> None:
    """Fill the state of `new`, which is zero, from that of `old`; both update the same parameters."""
    before = {(name, declared.name): tensor for name, declared, tensor in old.state()}
    for name, declared, tensor in new.state():
        found = before.get((name, declared.name))
        if found is not None and found.shape == tensor.shape and found.dtype == tensor.dtype:
            tensor.copy_(found)
