"""Finds the receipts of items that a run finishes, by looking at what is published; each is read once.

A watcher works alike on every runner, which metrics do not: the local runners give them only at the end. It must cost
next to nothing: a folder is listed only after it changed, and not again before the time that its length allows, so it
may be some seconds late where there are many items. A local run is told apart from an earlier one by the files' inode
numbers; a store by names alone, so an item done again there is seen when its stage ends.
"""

import contextlib
import json
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from gristmill.formats.errors import GristmillError
from gristmill.formats.receipts import STAGES_FOLDER, Receipt, item_receipt_path
from gristmill.formats.storage import is_local, join, list_files, local_path, read_bytes, relative_to

__all__ = ["FoundItem", "ReceiptWatch"]

_LOCAL_NAMES_PER_SECOND = 2000.0
_STORE_NAMES_PER_SECOND = 100.0
_STORE_SECONDS = 15.0
_READ_AT_ONCE = 500
_TICK_NANOSECONDS = 100_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundItem:
    """An item that is done.

    Attributes:
        step: name of the step.
        item: what receipts call it, for example ``web/00012``.
        result: what came of it.
        earlier: whether an earlier run did it, and this one need not.
    """

    step: str
    item: str
    result: dict[str, Any]
    earlier: bool


@dataclass(slots=True)
class _Folder:
    """A folder of receipts, what was seen in it, and when it may be listed again."""

    step: str
    below: str
    seen: dict[str, int] = field(default_factory=dict)
    changed: int = -1
    not_before: float = 0.0


class ReceiptWatch:
    """Looks for receipts in the folders of some steps.

    Args:
        corpus: folder or URL.
        earlier: the receipt of an item, by step and name, that an earlier run left and this one takes over; None where
            it is of no use, or that cannot be told.
        clock: gives seconds.
    """

    def __init__(
        self, corpus: str, earlier: Callable[[str, str], Receipt | None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._corpus = corpus
        self._earlier = earlier
        self._clock = clock
        self._local = is_local(corpus)
        self._folders: list[_Folder] = []
        self._waiting: deque[tuple[str, str, bool]] = deque()

    def follow(self, step: str, below: str) -> None:
        """Looks into one more folder from now on; what lies there is of an earlier run.

        Args:
            step: name of the step.
            below: the folder below that of the step's receipts, for example a source's id.
        """
        folder = _Folder(step, below)
        self._folders.append(folder)
        self._waiting += ((step, f"{below}/{name}", True) for name in self._fresh(folder))

    def look(self, steps: Sequence[str], *, last: bool = False) -> Iterator[FoundItem]:
        """The items of some steps that were finished since they were looked for last.

        Args:
            steps: names of the steps.
            last: whether to list whatever the time, and to read all that is found.
        """
        now = self._clock()
        for folder in self._folders:
            if folder.step in steps and (last or now >= folder.not_before):
                self._waiting += ((folder.step, f"{folder.below}/{name}", False) for name in self._fresh(folder))
        for _ in range(len(self._waiting) if last else min(_READ_AT_ONCE, len(self._waiting))):
            step, item, earlier = self._waiting.popleft()
            found = self._read(step, item, earlier)
            if found is not None:
                yield found

    def _fresh(self, folder: _Folder) -> list[str]:
        """Items of a folder that were not there when it was listed last, or are there anew."""
        path = join(self._corpus, STAGES_FOLDER, "items", folder.step, folder.below)
        listed = self._listed(path, folder) if self._local else _listed_in_store(path)
        if listed is None:
            return []
        rate = _LOCAL_NAMES_PER_SECOND if self._local else _STORE_NAMES_PER_SECOND
        least = 0.0 if self._local else _STORE_SECONDS
        folder.not_before = self._clock() + max(least, len(listed) / rate)
        fresh = sorted(name for name, inode in listed.items() if folder.seen.get(name) != inode)
        folder.seen = listed
        return fresh

    def _listed(self, path: str, folder: _Folder) -> dict[str, int] | None:
        """Items of a local folder with their inode numbers; None where nothing changed since the last time."""
        where = local_path(path)
        try:
            changed = os.stat(where).st_mtime_ns
        except OSError:
            return None
        if changed == folder.changed:
            return None
        # A file that comes within the same tick of the clock leaves the folder's time as it is: look again then.
        folder.changed = changed if time.time_ns() - changed > _TICK_NANOSECONDS else -1
        found: dict[str, int] = {}
        with contextlib.suppress(OSError), os.scandir(where) as entries:
            for entry in entries:
                if entry.name.endswith(".json"):
                    found[entry.name.removesuffix(".json")] = entry.inode()
        return found

    def _read(self, step: str, item: str, earlier: bool) -> FoundItem | None:
        """An item, out of its receipt; None where that is gone, damaged, or of no use to this run."""
        try:
            if earlier:
                receipt = self._earlier(step, item)
                result = None if receipt is None else dict(receipt.result)
            else:
                result = dict(json.loads(read_bytes(item_receipt_path(self._corpus, step, item)))["result"])
            return None if result is None else FoundItem(step=step, item=item, result=result, earlier=earlier)
        except (GristmillError, ValueError, KeyError, TypeError):
            return None


def _listed_in_store(path: str) -> dict[str, int]:
    names = (relative_to(found, path) for found in list_files(path))
    return {name.removesuffix(".json"): 0 for name in names if name.endswith(".json")}
