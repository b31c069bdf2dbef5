"""The pool of open shards: what a lease protects, what is closed, and how many stay open."""

import resource
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from gristmill.formats.errors import FormatError
from gristmill.formats.indexed_writer import write_indexed
from gristmill.runtime.shards import TOKEN_COUNT, TOKENS, Shard, ShardPool, default_open_limit


@pytest.fixture
def pool(tmp_path: Path) -> Callable[[int], ShardPool]:
    """A pool of six shards; shard n holds the tokens n, n."""
    shards = []
    for number in range(6):
        prefix = str(tmp_path / f"shard-{number}")
        with write_indexed(prefix, np.dtype("uint16")) as writer:
            writer.add(np.array([number, number], np.uint16), np.array([2]))
        shards.append(Shard(prefix=prefix, name=prefix, dtype="uint16", sequences=1, tokens=2))
    return lambda limit: ShardPool(shards, limit)


def is_open(pool: ShardPool) -> list[int]:
    return np.flatnonzero(pool.table[:, TOKENS]).tolist()


def test_the_least_recently_used_is_closed(pool: Callable[[int], ShardPool]) -> None:
    shards = pool(2)
    for number, expected in ((0, [0]), (1, [0, 1]), (0, [0, 1]), (2, [0, 2]), (2, [0, 2]), (3, [2, 3])):
        shards.leave(shards.open(shards.enter(), [number]))
        assert is_open(shards) == expected
        assert shards.open_count == len(expected)
    shards.close()
    assert is_open(shards) == []
    assert shards.open_count == 0
    assert (shards.table[:, TOKEN_COUNT] == 2).all(), "what does not depend on being open stays"


def test_what_a_lease_may_have_seen_stays_mapped(pool: Callable[[int], ShardPool]) -> None:
    shards = pool(1)
    early = shards.open(shards.enter(), [0])
    seen = shards.dataset(0)
    assert seen is not None
    late = shards.enter()
    for number in (1, 2, 3):
        late = shards.open(late, [number])
    shards.leave(late)
    tokens = seen.mapped_tokens
    assert tokens is not None
    assert tokens.tolist() == [0, 0]
    shards.close()
    assert shards.open_count > 0, "closing waits for the lease"
    shards.leave(early)
    assert shards.open_count == 0
    assert len(seen) == 0, "the last lease that saw it let it go"


def test_more_than_the_limit_is_worked_through_in_turns(pool: Callable[[int], ShardPool]) -> None:
    shards = pool(2)
    lease = shards.open(shards.enter(), range(6))
    assert is_open(shards) == [0, 1], "the first ones asked for, no more than the limit"
    lease = shards.open(lease, range(2, 6))
    assert is_open(shards) == [2, 3]
    shards.leave(lease)
    assert shards.open_count == 2


def test_a_shard_that_cannot_be_opened_leaves_nothing_behind(pool: Callable[[int], ShardPool], tmp_path: Path) -> None:
    shards = pool(4)
    (tmp_path / "shard-2.bin").unlink()
    lease = shards.enter()
    with pytest.raises(FormatError, match=r"shard-2\.bin: token file not found"):
        shards.open(lease, [0, 2, 3])
    shards.leave(lease)
    assert is_open(shards) == [0]
    shards.close()
    assert shards.open_count == 0


@pytest.mark.parametrize(("files", "expected"), [(96, 16), (512, 64), (1024, 128), (4096, 256)])
def test_the_limit_leaves_most_descriptors_to_others(files: int, expected: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and files > hard:
        pytest.skip(f"this machine allows {hard} open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))
    try:
        assert default_open_limit() == expected
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
