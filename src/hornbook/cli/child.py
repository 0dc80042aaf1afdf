"""Run a command in a child process that ends with its parent: `python -m hornbook.cli.child PARENT WORDS...`.

If the process PARENT ends, even by SIGKILL, so does this one.
"""

import sys

from hornbook.cli.main import main
from hornbook.run.launch.rank import die_with

if __name__ == "__main__":
    die_with(int(sys.argv.pop(1)))
    sys.exit(main())
