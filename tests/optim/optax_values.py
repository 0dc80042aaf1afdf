"""Steps of optax's Lion and LAMB, written to optax.json beside this file. Needs jax and optax, which no test does;
in an environment of its own: `pip install optax && python tests/optim/optax_values.py`.
"""

import json
import math
import random
from pathlib import Path
from typing import Any

SHAPES = {"a.weight": (4, 3), "a.bias": (4,)}
SETTINGS = {
    "lion": {"lr": 0.01, "weight_decay": 0.3, "beta1": 0.9, "beta2": 0.99},
    "lamb": {"lr": 0.02, "weight_decay": 0.1, "beta1": 0.9, "beta2": 0.999, "eps": 1e-6},
}
STEPS = 20


def draw(generator: random.Random, shape: tuple[int, ...], scale: float) -> Any:
    """Nested lists of normal values."""
    if not shape:
        return round(generator.gauss(0.0, scale), 5)
    return [draw(generator, shape[1:], scale) for _ in range(shape[0])]


def main() -> None:
    """Decay and the scaling to norms are for matrices alone, as with us."""
    import jax.numpy as jnp
    import optax

    generator = random.Random(0)
    start = {name: draw(generator, shape, 1.0) for name, shape in SHAPES.items()}
    gradients = [
        {name: draw(generator, shape, math.exp(number % 5 - 3)) for name, shape in SHAPES.items()}
        for number in range(STEPS)
    ]
    mask = {"a.weight": True, "a.bias": False}
    one, two = SETTINGS["lion"], SETTINGS["lamb"]
    optimizers = {
        "lion": optax.lion(one["lr"], one["beta1"], one["beta2"], weight_decay=one["weight_decay"], mask=mask),
        "lamb": optax.chain(
            optax.scale_by_adam(two["beta1"], two["beta2"], two["eps"]),
            optax.add_decayed_weights(two["weight_decay"], mask),
            optax.masked(optax.scale_by_trust_ratio(), mask),
            optax.scale(-two["lr"]),
        ),
    }
    found: dict[str, Any] = {"settings": SETTINGS, "start": start, "gradients": gradients}
    for name, optimizer in optimizers.items():
        values = {key: jnp.array(value) for key, value in start.items()}
        state = optimizer.init(values)
        for each in gradients:
            given = {key: jnp.array(value) for key, value in each.items()}
            updates, state = optimizer.update(given, state, values)
            values = optax.apply_updates(values, updates)
        found[name] = {key: value.tolist() for key, value in values.items()}
    Path(__file__).with_name("optax.json").write_text(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
