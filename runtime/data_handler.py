"""The data state as an item of Orbax's `CheckpointManager`, for loops that keep their checkpoints themselves.

    manager.save(step, args=ocp.args.Composite(model=ocp.args.StandardSave(model), data=DataSave(batches)))
    manager.restore(step, args=ocp.args.Composite(model=ocp.args.StandardRestore(model), data=DataRestore(batches)))

Grain's own handler writes a file for each process and restores on the same number of processes only; this one writes a
single file, which any number of processes restores.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orbax.checkpoint as ocp

from gristmill.runtime.state import HasState
from gristmill.runtime.state_file import STATE_NAME, read_state

__all__ = ["DataHandler", "DataRestore", "DataSave"]


class DataHandler(ocp.JsonCheckpointHandler):  # type: ignore[misc]  # Orbax's classes are Any here
    """Writes and reads `state.json`; used through `DataSave` and `DataRestore`."""

    def __init__(self, *, primary_host: int | None = 0) -> None:
        """Makes a handler.

        Args:
            primary_host: number of the process that writes; None lets each write, for folders that are not shared.
        """
        options = ocp.options.MultiprocessingOptions(primary_host=primary_host)
        super().__init__(STATE_NAME, multiprocessing_options=options)

    async def async_save(self, directory: Any, item: Any = None, args: "DataSave | None" = None) -> Any:
        """Takes the state at once and writes it in the background."""
        given = item if args is None else args.item
        state = given if isinstance(given, Mapping) else given.get_state()
        return await super().async_save(directory, args=ocp.args.JsonSave(state))

    def restore(self, directory: Any, item: Any = None, args: "DataRestore | None" = None) -> Any:
        """Reads the state; see `DataRestore`.

        Raises:
            CorpusError: there is no state, or it is of another stream.
            FormatError: the state is damaged.
        """
        given = item if args is None else args.item
        state = read_state(directory)
        if given is None:
            return state
        given.set_state(state)
        return given


@ocp.args.register_with_handler(DataHandler, for_save=True)
@dataclass
class DataSave(ocp.args.CheckpointArgs):  # type: ignore[misc]  # Orbax's classes are Any here
    """Saves the state of the data; it is taken when `save` is called, so the loop may go on at once.

    Attributes:
        item: the data, `TokenBatches`, or a state that it gave.
    """

    item: HasState | Mapping[str, Any]


@ocp.args.register_with_handler(DataHandler, for_restore=True)
@dataclass
class DataRestore(ocp.args.CheckpointArgs):  # type: ignore[misc]  # Orbax's classes are Any here
    """Restores the state of the data, on any number of processes.

    Attributes:
        item: the data, which is set to the state and is the result; with None the state itself is.
    """

    item: HasState | None = None
