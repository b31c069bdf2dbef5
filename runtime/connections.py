"""Shares out connections, and the memory for what comes over them, to objects that are brought at the same time."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["Connections", "Turn"]

_LOOK_SECONDS = 0.2  # between two looks whether to stop


class Connections:
    """A fixed number of connections, and twice as many pieces of memory. Safe to use from many threads.

    Who came first is served first and gets all it wants, so that objects are complete in the order in which they were
    asked for, and one is checked and written while the next comes. Sharing alike would complete all of them at once, at
    the end.
    """

    def __init__(self, count: int) -> None:
        """All of them are free.

        Args:
            count: connections, at least 1.
        """
        self._free = count
        self._memory = 2 * count
        self._changed = threading.Condition()
        self._next = 0
        self._waiting: set[int] = set()

    @contextmanager
    def turn(self) -> Iterator["Turn"]:
        """A place in the order, kept while the block lasts."""
        with self._changed:
            number, self._next = self._next, self._next + 1
        turn = Turn(self, number)
        try:
            yield turn
        finally:
            turn.hang_up()
            turn.forget()

    def take(self, number: int, wanted: int, stopped: threading.Event | None) -> int:
        """Waits for connections; gives how many there are, 1 to `wanted`, or 0 when `stopped` is set."""
        with self._changed:
            self._waiting.add(number)
            taken = 0
            while not taken and not (stopped is not None and stopped.is_set()):
                if min(self._waiting) == number:
                    taken = min(wanted, self._free, self._memory)
                if not taken:
                    self._changed.wait(_LOOK_SECONDS)
            self._waiting.discard(number)
            self._free -= taken
            self._memory -= taken
            self._changed.notify_all()
        return taken

    def give(self, *, connections: int = 0, memory: int = 0) -> None:
        """Takes back what was taken."""
        with self._changed:
            self._free += connections
            self._memory += memory
            self._changed.notify_all()


class Turn:
    """What one object has of the connections. Used by one thread."""

    def __init__(self, connections: Connections, number: int) -> None:
        self._connections, self._number = connections, number
        self._open = self._kept = 0

    def call(self, wanted: int, stopped: threading.Event | None = None) -> int:
        """Waits for connections, with memory for a piece each; gives how many, 1 to `wanted`, or 0 once stopped."""
        taken = self._connections.take(self._number, wanted, stopped)
        self._open += taken
        self._kept += taken
        return taken

    def hang_up(self) -> None:
        """Gives the connections back, keeping the memory; may be called twice."""
        count, self._open = self._open, 0
        self._connections.give(connections=count)

    def forget(self) -> None:
        """Gives the memory back; may be called twice."""
        count, self._kept = self._kept, 0
        self._connections.give(memory=count)
