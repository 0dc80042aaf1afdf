"""Requests of people to a run, as the files that the loop looks for."""

import os
import time
from pathlib import Path

from hornbook.files.durable import write_atomic
from hornbook.files.run_directory import RunDir
from hornbook.run.control import Request


def write_request(run: RunDir, request: Request) -> Path:
    """Write a request where the loop finds it; returns the file."""
    path = run.control / f"{time.time_ns()}-{os.getpid()}.json"
    write_atomic(path, request.model_dump_json() + "\n")
    return path
