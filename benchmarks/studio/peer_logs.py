"""Writes runs into the store of another tool, by that tool's own functions; runs in that tool's environment.

python peer_logs.py TOOL FOLDER     in the folder of the store; prints the first run's name there
"""

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

KEYS = ("loss", "gradient_norm", "lr", "tokens_per_second")


def rows_of(run: Path) -> Iterator[tuple[int, float, dict[str, float]]]:
    """(step, time, values) of the steps of a run."""
    for line in (run / "metrics.jsonl").open():
        row = json.loads(line)
        yield row["step"], row["time"], {key: row[key] for key in KEYS}


def write_tensorboard(run: Path) -> str:
    """Event files."""
    event: Any = importlib.import_module("tensorboard.compat.proto.event_pb2").Event
    summary: Any = importlib.import_module("tensorboard.compat.proto.summary_pb2").Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    writer = EventFileWriter(run.name)
    for step, at, values in rows_of(run):
        parts: Any = [summary.Value(tag=key, simple_value=value) for key, value in values.items()]
        writer.add_event(event(step=step, wall_time=at, summary=summary(value=parts)))
    writer.close()
    return run.name


def write_trackio(run: Path) -> str:
    """Trackio's database, whose folder TRACKIO_DIR names."""
    import trackio  # pyright: ignore[reportMissingImports]

    trackio.init(project="runs", name=run.name, auto_log_gpu=False, auto_log_cpu=False)
    for step, _, values in rows_of(run):
        trackio.log(values, step=step)
    trackio.finish()
    return run.name


def write_aim(run: Path) -> str:
    """Aim's repository."""
    import aim  # pyright: ignore[reportMissingImports]

    made = aim.Run(repo=".", system_tracking_interval=None, capture_terminal_logs=False)
    for step, _, values in rows_of(run):
        for key, value in values.items():
            made.track(value, name=key, step=step)
    made.close()
    return made.hash


def main(tool: str, folder: str) -> None:
    """Write all runs of a folder."""
    if tool == "aim":
        import aim  # pyright: ignore[reportMissingImports]

        aim.Repo.from_path(".", init=True)
    write = {"tensorboard": write_tensorboard, "trackio": write_trackio, "aim": write_aim}[tool]
    names = [write(run) for run in sorted(Path(folder).iterdir())]
    print(names[0])


if __name__ == "__main__":
    main(*sys.argv[1:])
