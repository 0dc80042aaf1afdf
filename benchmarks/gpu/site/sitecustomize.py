"""Python imports this at the start of every process of a part: SIGURG then writes the stacks of all threads to a file.

The default action of SIGURG is to ignore it, so a compiler in the same group of processes survives it.
"""

import faulthandler
import os
import signal
import sys

if os.path.isdir(folder := os.environ.get("GPU_STACKS", "")):
    file = os.open(os.path.join(folder, str(os.getpid())), os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    os.write(file, " ".join(sys.orig_argv)[:300].replace("\n", " ").encode() + b"\n")
    faulthandler.register(signal.SIGURG, file, all_threads=True)
