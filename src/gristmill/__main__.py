"""`python -m gristmill`: the same as the `gristmill` command."""

from gristmill.cli import entry

if __name__ == "__main__":
    entry()
