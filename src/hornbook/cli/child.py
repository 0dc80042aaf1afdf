"""`python -m hornbook.cli.child PARENT WORDS...`: a command that ends with the process PARENT, even by SIGKILL."""

import sys

from hornbook.cli.main import main
from hornbook.run.launch.rank import die_with

if __name__ == "__main__":
    die_with(int(sys.argv.pop(1)))
    sys.exit(main())
