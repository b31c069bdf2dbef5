"""Batches of small files, put together: the same texts and numbers, in fewer pieces that stay small."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.pipelines import joined
from gristmill.pipelines.joined import join_batches
from gristmill.pipelines.records import Batch


@given(
    st.lists(st.lists(st.text(min_size=1, max_size=30), max_size=6), max_size=12),
    st.booleans(),
    st.booleans(),
)
def test_nothing_is_lost_or_moved(texts: list[list[str]], addressed: bool, carrying: bool) -> None:
    number = 0
    batches = []
    for some in texts:
        records = range(number, number + len(some))
        number += len(some) + 1  # as if a bad record followed
        batches.append(
            Batch(
                some,
                records,
                [f"at {record}" for record in records] if addressed else None,
                [b"%d" % record for record in records] if carrying else None,
            )
        )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(joined, "_JOINED_CHARS", 60)
        found = list(join_batches(batches))
    assert [text for batch in found for text in batch.texts] == [text for some in texts for text in some]
    assert [record for batch in found for record in batch.records] == [
        record for batch in batches for record in batch.records
    ]
    for batch in found:
        assert batch.addresses == ([f"at {record}" for record in batch.records] if addressed else None)
        assert batch.carried == ([b"%d" % record for record in batch.records] if carrying else None)
        whole = sum(map(len, batch.texts))
        assert whole <= 60 or any(whole == sum(map(len, one.texts)) for one in batches)
    assert len(found) <= len(batches)


def test_many_small_files_come_as_few_batches(workshop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    def counted(batches: Any) -> Any:
        for batch in join_batches(batches):
            sizes.append(len(batch.texts))
            yield batch

    monkeypatch.setattr("gristmill.pipelines.raw.join_batches", counted)
    texts = [f"text {number}" for number in range(300)]
    for number, text in enumerate(texts):
        workshop.jsonl(f"in/{number:03d}.jsonl", [text])
    workshop.prepare({"files": [f"{workshop.folder}/in"]})
    assert sizes == [300]
    assert workshop.texts("s0") == texts
