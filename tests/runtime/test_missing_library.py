"""A library that the training extra brings is missing: the error names the extra."""

import re
import subprocess
import sys

import pytest


@pytest.mark.parametrize(("library", "name"), [("grain", "TokenBatches"), ("orbax", "Checkpoints")])
def test_the_extra_is_named(library: str, name: str) -> None:
    code = f"import sys; sys.modules[{library!r}] = None; import gristmill.runtime; gristmill.runtime.{name}"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    last = result.stderr.strip().splitlines()[-1]
    told = rf"gristmill\.formats\.errors\.MissingExtraError: gristmill\.runtime\.{name} needs `{library}[.\w]*`, which"
    assert re.match(told + r" is not installed: pip install 'gristmill\[train\]'", last), last


def test_a_corpus_opens_without_it() -> None:
    code = "import sys; sys.modules['grain'] = sys.modules['jax'] = None; from gristmill.runtime import open_corpus"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
