"""`python -m hornbook`."""

import sys

from hornbook.cli.main import main

sys.exit(main())
