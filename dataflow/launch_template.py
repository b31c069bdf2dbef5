"""What the Flex Template's launcher runs: `gristmill launch` with the parameters that the service gives as options."""

import sys

from gristmill.cli import main

__all__: list[str] = []

if __name__ == "__main__":
    sys.exit(main(["launch", *sys.argv[1:]]))
