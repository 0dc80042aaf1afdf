"""Delivers one alert: `python deliver.py` with {kind, target, message} as JSON on stdin. Exit code 0 if it arrived.

It is a program of its own, so it imports nothing of the package and starts in some ten milliseconds.
"""

import json
import os
import subprocess
import sys
import urllib.request

WEBHOOK_SECONDS = 10.0
COMMAND_SECONDS = 60.0
NOT_STARTED = 127
"""Exit code for a program that cannot be started, as a shell has it."""


def main() -> int:
    """Deliver what stdin says."""
    request = json.load(sys.stdin)
    data = json.dumps(request["message"]).encode()
    if request["kind"] == "command":
        try:
            return subprocess.run(request["target"], input=data, timeout=COMMAND_SECONDS, check=False).returncode
        except OSError:
            return NOT_STARTED
    url = request["target"]
    url = os.environ.get(url.removeprefix("env:"), "") if url.startswith("env:") else url
    if not url.startswith(("http://", "https://")):  # a variable may hold anything
        return 2
    post = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method="POST")
    with urllib.request.urlopen(post, timeout=WEBHOOK_SECONDS) as answer:
        return 0 if answer.status < 400 else 1


if __name__ == "__main__":
    sys.exit(main())
