"""Checkpoints that hold the model and the state of its data together, through Orbax.

A model restored without its data state would see rows again, or never see some, and no loss curve would show it. So
both are written as one checkpoint, which counts only when complete, and a checkpoint without data state is refused.
The data state is one small JSON, written by one process: any number of processes can restore it.
"""

import os
from types import TracebackType
from typing import Any, Self

import jax
import orbax.checkpoint as ocp

from gristmill.formats.errors import CorpusError, FormatError, SettingsError
from gristmill.formats.storage import exists, is_local, join, local_path
from gristmill.runtime.data_handler import DataRestore, DataSave
from gristmill.runtime.state import HasState
from gristmill.runtime.whole_number import whole_number

__all__ = ["Checkpoints"]

_MODEL, _DATA = "model", "data"


class Checkpoints:
    """A folder of checkpoints, each with a model and a data state.

    Every process of a training job makes one for the same folder and makes the same calls. Saving is asynchronous:
    arrays are copied to the host first, so the caller may overwrite them at once. `close` it, or use it in a ``with``
    block: that waits for the last save.

    Attributes:
        folder: path (absolute) or URL.
    """

    def __init__(self, folder: str | os.PathLike[str], *, keep: int = 3) -> None:
        """Opens a folder, making it where it is absent.

        Args:
            folder: path or URL.
            keep: how many of the newest checkpoints are kept, at least 1.

        Raises:
            SettingsError: `keep` is below 1, or the folder is a file.
        """
        keep = whole_number("keep", keep)
        if keep < 1:
            raise SettingsError(f"keep must be at least 1 checkpoint, not {keep}")
        path = os.fspath(folder)
        self.folder = os.path.abspath(local_path(path)) if is_local(path) else path
        if is_local(path) and os.path.exists(self.folder) and not os.path.isdir(self.folder):
            raise SettingsError(
                f"{self.folder}: is a file; checkpoints need a folder, which is made where it is absent"
            )
        options = ocp.CheckpointManagerOptions(max_to_keep=keep, create=True)
        self._manager = ocp.CheckpointManager(self.folder, options=options, item_names=(_MODEL, _DATA))

    @property
    def steps(self) -> list[int]:
        """Steps of the complete checkpoints, ascending."""
        return sorted(self._manager.all_steps())

    @property
    def latest(self) -> int | None:
        """Step of the newest complete checkpoint, or None."""
        return max(self.steps, default=None)

    def save(self, step: int, model: Any, batches: HasState) -> None:
        """Saves model and data state as one checkpoint; one that is there already is kept.

        Args:
            step: steps trained so far, a whole number of at least 0.
            model: tree of arrays: parameters, optimiser state, whatever is to come back.
            batches: the data, right after the batch of that step was trained on.

        Raises:
            SettingsError: `step` is no such number; its checkpoint would not be found again.
            CorpusError: the folder holds checkpoints of later steps: of another run, or of this one before it went back
                further than to the newest. The next start would go on from those.
        """
        step = whole_number("step", step, 0)
        present = self._manager.all_steps()
        later = sorted(other for other in present if other > step)
        if later:
            raise CorpusError(
                f"{self.folder}: step {step} cannot be saved beside later ones that are there ({later}), of another "
                "run or of one that went back: the next start would go on from those. Remove them, or save to an empty "
                "folder"
            )
        if step not in present:
            args = {_MODEL: ocp.args.StandardSave(model), _DATA: DataSave(batches)}
            self._manager.save(step, args=ocp.args.Composite(**args))

    def restore(self, model: Any, batches: HasState, step: int | None = None) -> tuple[int, Any]:
        """Restores a checkpoint: sets the data to its state and returns the model; both or, on an error, neither.

        Batches are made ahead while the model is read, so that the first one need not be waited for.

        Args:
            model: tree of arrays or `jax.ShapeDtypeStruct`s with the shapes, dtypes and shardings wanted.
            batches: the data; refuses the state of another stream.
            step: which checkpoint; None takes the newest.

        Returns:
            The step and the model.

        Raises:
            CorpusError: there is no such checkpoint, it has no data state, or its data state is of another stream.
            FormatError: the data state is damaged.
        """
        self._manager.wait_until_finished()
        steps = self.steps
        chosen = self.latest if step is None else step
        if chosen is None or chosen not in steps:
            wanted = "no checkpoint" if step is None else f"no checkpoint of step {step}"
            raise CorpusError(f"{self.folder}: {wanted}; complete ones are {steps or 'not there at all'}")
        before = batches.get_state()
        batches.set_state(self._data_state(chosen))
        getattr(batches, "start_prefetch", lambda: None)()  # iterators of Grain have it
        try:
            abstract = jax.tree.map(ocp.utils.to_shape_dtype_struct, model)
            restored = self._manager.restore(
                chosen, args=ocp.args.Composite(**{_MODEL: ocp.args.StandardRestore(abstract)})
            )
        except BaseException:
            batches.set_state(before)
            raise
        return chosen, restored[_MODEL]

    def _data_state(self, step: int) -> dict[str, Any]:
        folder = join(self.folder, str(step), _DATA)
        if not exists(folder):
            raise CorpusError(
                f"{self.folder}: the checkpoint of step {step} holds no data state, so it is not known which rows its "
                "model has seen; save with Checkpoints.save, or start in an empty folder"
            )
        try:
            data = self._manager.restore(step, args=ocp.args.Composite(**{_DATA: DataRestore()}))
        except (ValueError, OSError) as error:
            raise FormatError(f"{folder}: the data state cannot be read ({error}); restore an earlier step") from error
        state: dict[str, Any] = data[_DATA]
        return state

    def wait(self) -> None:
        """Waits until the last save is complete."""
        self._manager.wait_until_finished()

    def close(self) -> None:
        """Waits for the last save and stops Orbax's threads."""
        self._manager.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
