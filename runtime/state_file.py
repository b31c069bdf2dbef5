"""The data state as one file of a checkpoint: written by a single process, read by any number.

Whichever way a checkpoint is made, its folder for the data holds one small `state.json`. All processes of a job share
one state, so files of each process, as Grain's own handler leaves them, are read too, and one of them is enough.
"""

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

import jax

from gristmill.formats.errors import CorpusError, FormatError

__all__ = ["load_state", "read_state", "save_state", "STATE_NAME"]

STATE_NAME = "state.json"
"""Name of the file in a checkpoint's folder for the data."""

_OTHER_NAMES = ("metadata", "process_*-of-*.json")
"""What Orbax's handler of plain JSON and Grain's handler call the same thing."""


class _Folder(Protocol):
    """What is used of a path on any file system, as Orbax hands them out."""

    def __truediv__(self, name: str) -> Any: ...

    def glob(self, pattern: str) -> Any: ...


class _ComingFolder(Protocol):
    """A folder that Orbax is about to make."""

    async def await_creation(self) -> Any:
        """The folder, once it is there."""
        ...


async def save_state(directory: _ComingFolder, state: dict[str, Any]) -> None:
    """Writes a state into a folder that Orbax is about to make; process 0 does, the others only wait for the folder."""
    folder = await directory.await_creation()
    if jax.process_index() == 0:
        await asyncio.to_thread((folder / STATE_NAME).write_text, json.dumps(state))


def load_state(directory: _Folder, set_state: Callable[[Any], None]) -> Coroutine[Any, Any, None]:
    """What reads the state of a folder and hands it on, when awaited. Raises as `read_state` and `set_state` do."""

    async def load() -> None:
        set_state(await asyncio.to_thread(read_state, directory))

    return load()


def read_state(directory: _Folder) -> Any:
    """The JSON value of the state that a checkpoint's folder holds; not looked at any further.

    Raises:
        CorpusError: the folder holds no state.
        FormatError: the file is damaged.
        OSError: the file cannot be read.
    """
    found = directory / STATE_NAME
    if not found.exists():
        others = [path for pattern in _OTHER_NAMES for path in sorted(directory.glob(pattern))]
        if not others:
            raise CorpusError(
                f"{directory}: holds no {STATE_NAME}, so it is not known which rows its model has seen; save the data "
                "with Checkpoints.save or DataSave, or restore another step"
            )
        found = others[0]
    text = found.read_bytes()
    try:
        return json.loads(text)
    except ValueError as error:
        raise FormatError(f"{found}: the data state is damaged ({error}); restore an earlier step") from error
