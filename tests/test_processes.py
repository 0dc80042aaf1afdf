"""What tests start ends with them, however they end."""

import os
import signal
import subprocess
import sys

from tests.processes import ROOT, state_of, wait_until

WAIT = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
SLEEP = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {WAIT!r}])"
SESSION = f"""
import subprocess, sys
from tests.processes import kill_what_is_left
kill_what_is_left()
subprocess.Popen([sys.executable, "-c", {SLEEP!r}], start_new_session=True).wait()
"""


def test_what_a_killed_session_started_is_killed() -> None:
    """A grandchild, in a session of its own."""
    with subprocess.Popen([sys.executable, "-c", SESSION], cwd=ROOT, stdout=subprocess.PIPE, text=True) as session:
        assert session.stdout is not None
        last = int(session.stdout.readline())
        assert state_of(last) not in ("", "Z")
        os.kill(session.pid, signal.SIGKILL)
        wait_until(lambda: state_of(last) in ("", "Z"))
