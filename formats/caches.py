"""The folders in which indices of adopted data are looked for and kept, and what may be done there.

Keeping nothing is allowed and is the default: a start then builds everything in memory, and a folder that cannot be
written to is the same with a warning. Failing there instead would stop one host of a job while the others go on.
"""

import warnings
from dataclasses import dataclass
from typing import Literal

from gristmill.formats.data_sources import DataSource
from gristmill.formats.errors import SettingsError

__all__ = ["Caches", "ForeignCaches", "warn_unwritten"]

ForeignCaches = Literal["use", "ignore", "require"]
"""What to do with indices that Megatron or MaxText left in a cache folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Caches:
    """Where indices are looked for and kept.

    Attributes:
        folder: of a member's indices, unless its entry names one; None keeps nothing.
        blend_index: folder of a blend made beforehand, only read.
        blend_cache: folder where blends are kept; None takes `folder`.
        foreign: what to do with indices of Megatron's and MaxText's.
        write: whether this process writes what it built.
    """

    folder: str | None = None
    blend_index: str | None = None
    blend_cache: str | None = None
    foreign: ForeignCaches = "use"
    write: bool = True

    def __post_init__(self) -> None:
        if self.foreign not in {"use", "ignore", "require"}:
            raise SettingsError(f"foreign_caches {self.foreign!r}: it is 'use', 'ignore' or 'require'")

    def member_folder(self, source: DataSource) -> str | None:
        """Where the indices of a source lie."""
        return source.entry.index_folder or self.folder

    @property
    def blend_folder(self) -> str | None:
        """Where blends are kept."""
        return self.blend_cache or self.folder


def warn_unwritten(what: str, error: Exception, option: str) -> None:
    """Warns that something cannot be kept.

    Args:
        what: in words.
        error: why.
        option: the option that names another folder.
    """
    warnings.warn(
        f"{what} cannot be kept: {error}; they are in memory and will be built at every start: name a folder that can "
        f"be written to with {option}",
        stacklevel=3,
    )
