"""`python -m gristmill`: the same as the `gristmill` command."""

import sys

from gristmill.cli import main

sys.exit(main())
