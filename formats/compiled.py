"""How loops are compiled: by Numba, without the interpreter's lock, cached on disk where a place for it can be written.

The cache lies beside the source, in the user's cache folder when the install is read-only, or where `NUMBA_CACHE_DIR`
says. With no writable place at all each process compiles anew, which costs some seconds at the first call. Modules of
such loops are imported inside the functions that need them, since importing Numba takes half a second.
"""

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

__all__ = ["compiled"]

_Function = TypeVar("_Function", bound=Callable[..., Any])


def compiled(function: _Function) -> _Function:
    """The compiled form of a function over arrays and numbers; same signature. Fast-math stays off."""
    try:
        return cast("_Function", numba.njit(function, nogil=True, cache=True))
    except RuntimeError:  # no folder for the cache can be written
        return cast("_Function", numba.njit(function, nogil=True))
