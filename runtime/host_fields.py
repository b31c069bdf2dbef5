"""Fields made on the host, in one compiled pass, and handed to the devices ready for use.

The default: nothing is left to do in the training step, and any training code can take them. The price is six int32
arrays for each batch, made on the host and sent, where `gristmill.runtime.device_fields` sends two arrays of tokens.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import jax
import numpy as np
from numpy.typing import NDArray

from gristmill.runtime.delivery import BatchPlan
from gristmill.runtime.fields import CU_SEQLENS, FieldOptions
from gristmill.runtime.naming import Naming
from gristmill.runtime.raw_rows import RawRows

__all__ = ["HostFields"]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFields:
    """Makes the fields of batches on the host.

    Attributes:
        plan: how arrays [G, L] reach the devices.
        options: how the fields are made.
        naming: whose names they have. Megatron's int64 becomes int32, which is what JAX keeps of it by default.
        eod_id: id that closes a document.
        vocabulary: bound of the ids, or None.
    """

    plan: BatchPlan
    options: FieldOptions
    naming: Naming
    eod_id: int
    vocabulary: int | None

    @property
    def paired(self) -> bool:
        """Whether inputs and targets are all it needs."""
        return False

    @property
    def spec(self) -> dict[str, jax.ShapeDtypeStruct]:
        """Shape, dtype and sharding of each array of a batch."""
        none = np.zeros((0, self.plan.sequence_length + 1), np.int32)
        raw = RawRows(rows=np.zeros(0, np.int64), tokens=none, starts=none.astype(bool), valid_length=None)
        spec = {}
        for name, field in self._fields(raw).items():
            plan = self._plan_of(name, field)
            shape, sharding = (plan.shape, plan.sharding) if field.ndim > 1 else (plan.row_shape, plan.row_sharding)
            spec[name] = jax.ShapeDtypeStruct(shape, field.dtype, sharding=sharding)
        return spec

    def deliver(self, raw: RawRows) -> dict[str, jax.Array]:
        """Makes the batch whose rows these are: `plan.rows` of it, in that order.

        Raises:
            DataError: an id is out of range, or a row has more segments than the options allow.
        """
        return {name: self._plan_of(name, field).deliver(field) for name, field in self._fields(raw).items()}

    @staticmethod
    def expand(batch: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
        """What is in the batch: its fields are made."""
        return dict(batch)

    def _fields(self, raw: RawRows) -> dict[str, NDArray[np.int32 | np.float32]]:
        made = raw.fields(self.eod_id, self.options, vocabulary=self.vocabulary, naming=self.naming)
        return {name: field if field.dtype != np.int64 else field.astype(np.int32) for name, field in made.items()}

    def _plan_of(self, name: str, field: NDArray[np.generic]) -> BatchPlan:
        return self.plan.of_width(field.shape[1]) if name == CU_SEQLENS else self.plan
