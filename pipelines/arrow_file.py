"""The record batches of Arrow IPC data: how many, and how large, which is what a plan cuts a file by."""

import pyarrow as pa

from gristmill.formats.errors import InputError
from gristmill.formats.storage import open_read

__all__ = ["arrow_batches", "arrow_rows", "FILE_MAGIC"]

FILE_MAGIC = b"ARROW1"
"""What an Arrow IPC file begins with; a stream begins otherwise."""


def arrow_batches(path: str) -> list[tuple[int, int]] | None:
    """Rows and bytes of every record batch of an Arrow IPC file; None for a stream, which cannot be cut.

    Raises:
        InputError: the file is damaged.
        StorageError: it cannot be read.
    """
    with open_read(path) as raw:
        if raw.read(len(FILE_MAGIC)) != FILE_MAGIC:
            return None
        raw.seek(0)
        try:
            file = pa.ipc.open_file(raw)
            return [(batch.num_rows, batch.nbytes) for batch in map(file.get_batch, range(file.num_record_batches))]
        except (pa.ArrowException, OSError) as error:
            raise InputError(f"{path}: cannot be read as Arrow IPC: {error}; fetch it again or leave it out") from error


def arrow_rows(path: str) -> int:
    """Rows of an Arrow IPC file, or of a stream, which is read for it.

    Raises:
        InputError: the file is damaged.
        StorageError: it cannot be read.
    """
    batches = arrow_batches(path)
    if batches is not None:
        return sum(rows for rows, _ in batches)
    try:
        with open_read(path) as raw, pa.ipc.open_stream(raw) as stream:
            return sum(int(rows.num_rows) for rows in stream)
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"{path}: cannot be read as Arrow IPC: {error}; fetch it again or leave it out") from error
