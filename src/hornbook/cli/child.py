"""A command as a child that ends with its parent: `python -m hornbook.cli.child PARENT WORDS...`.

Whatever ends the process PARENT, SIGKILL included, ends this one: nobody would wait for what it does.
"""

import sys

from hornbook.cli.main import main
from hornbook.run.launch.rank import die_with

if __name__ == "__main__":
    die_with(int(sys.argv.pop(1)))
    sys.exit(main())
