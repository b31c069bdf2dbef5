"""What the Flex Template's launcher runs: `gristmill launch` with the parameters that the service gives as options."""

import runpy
import sys

__all__: list[str] = []

if __name__ == "__main__":
    sys.argv.insert(1, "launch")
    runpy.run_module("gristmill", run_name="__main__", alter_sys=True)
