"""The parity matrix: random tiny models of every architecture beside transformers', all parameters random.

`python -m benchmarks.training.parity` writes benchmarks/results/parity.json: of several draws of each architecture the
largest difference of float32 logits, and of gradients, as a share of the largest; and whether the export is equal to
the bit.
"""

import argparse
import os
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import report

DRAWS = 8
LIMIT = 1e-5


def measure(name: str, draws: int) -> dict[str, Any]:
    """Largest difference in each case over `draws` random models."""
    from tests.model import parity

    cases: dict[str, float] = {}
    equal, kind = 0, ""
    for seed in range(draws):
        with tempfile.TemporaryDirectory() as folder:
            pair = parity.make_pair(name, seed, Path(folder))
            for case, difference in parity.measure(pair).items():
                cases[case] = max(cases.get(case, 0.0), difference)
            equal += parity.exported(pair)
            kind = pair.config.kind
    kept = equal == draws and all(difference <= LIMIT for difference in cases.values())
    return {"cases": cases, "exports_equal": equal, "kept": kept, "family": kind}


def run(draws: int = DRAWS) -> dict[str, Any]:
    """Measure all architectures and write the file."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    import transformers

    from tests.model.architectures import DRAWS as ARCHITECTURES
    from tests.model.architectures import LABEL_DRAWS

    found: dict[str, Any] = {}
    for name in ARCHITECTURES | LABEL_DRAWS:
        found[name] = measure(name, draws)
        print(name, {case: f"{value:.1e}" for case, value in found[name]["cases"].items()}, found[name]["kept"])
    figures = {"transformers": transformers.__version__, "draws": draws, "limit": LIMIT, "architectures": found}
    print(f"wrote {report.write('parity', figures)}")
    return figures


def main() -> None:
    """`run` with the number of draws given."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=DRAWS)
    run(parser.parse_args().draws)


if __name__ == "__main__":
    main()
