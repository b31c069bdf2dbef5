"""Reads the `[index]` table of a recipe: sizes, splits, and the phases of a weight schedule.

Like every table of a recipe it is read to the end whatever is wrong, so that all mistakes are told at once; what a
wrong value would have decided is left at its default meanwhile.
"""

from collections.abc import Mapping
from dataclasses import replace

from gristmill.formats.errors import SettingsError
from gristmill.formats.index_plan import IndexSettings, SplitRequest
from gristmill.formats.schedule import Phase
from gristmill.formats.settings_table import SettingsTable
from gristmill.formats.split import parse_split

__all__ = ["read_index"]

_LARGEST_SIZE = 2**63 - 1
_COUNT_SAYS = "a positive integer"


def read_index(table: SettingsTable, *, seed: int, weights: Mapping[str, float | None], splits: str) -> IndexSettings:
    """Reads the table.

    Args:
        table: the table.
        seed: seed of every shuffle.
        weights: the sources' own weights, by id in the recipe's order.
        splits: split string where the table has none.
    """
    says = "a number of tokens, 2 to 2147483646"
    length = (
        table.take("sequence_length", int, required=True, rule=lambda value: 2 <= value < 2**31 - 1, says=says) or 2
    )
    proportions = table.take("splits", str, splits) or splits
    try:
        parse_split(proportions)
    except SettingsError as error:
        table.note("splits", str(error))
        proportions = splits
    train = _size(table, length)
    held_out = []
    for name in ("valid", "test"):
        inner = table.table(name)
        kept = inner.take("drop_last_partial", bool, True)
        held_out.append(replace(_size(inner, length), drop_last_partial=kept is not False))
        inner.finish()
    schedule = _schedule(table, length, train, weights)
    table.finish()
    valid, test = held_out
    return IndexSettings(
        sequence_length=length,
        seed=seed,
        splits=proportions,
        train=train,
        valid=valid,
        test=test,
        schedule=schedule,
    )


def _size(table: SettingsTable, sequence_length: int) -> SplitRequest:
    given = [name for name in ("samples", "tokens", "epochs") if table.has(name)]
    samples, tokens, epochs = (
        table.take(name, int, None, rule=lambda value: 0 < value <= _LARGEST_SIZE, says=_COUNT_SAYS)
        for name in ("samples", "tokens", "epochs")
    )
    if len(given) > 1:
        table.note(given[1], f"and {given[0]} both size the split; give one of samples, tokens and epochs")
        return SplitRequest()
    return SplitRequest(samples=samples if tokens is None else -(-tokens // sequence_length), epochs=epochs)


def _schedule(
    table: SettingsTable, sequence_length: int, train: SplitRequest, weights: Mapping[str, float | None]
) -> tuple[Phase, ...]:
    """Reads the later phases of the training split; none where any of them has a mistake."""
    if not table.has("schedule"):
        return ()
    mistakes = len(table.problems)
    phases: list[Phase] = []
    before, name_before = 0, "the sources' own weights hold"
    for inner in table.tables("schedule"):
        start = _start(inner, sequence_length)
        shares = _weights(inner, weights)
        inner.finish()
        if start is None:
            continue
        key = "from_tokens" if inner.has("from_tokens") else "from_sample"
        if start <= before:
            inner.note(key, f"is sample {start}; it must be above sample {before}, from which {name_before}")
        elif train.samples is not None and start >= train.samples:
            inner.note(key, f"is sample {start}, but the training split ends before sample {train.samples}")
        before, name_before = max(start, before), "the phase before holds"
        if shares is not None:
            phases.append(Phase(start, shares))
    if train.samples is None:
        table.note("schedule", "needs a size of the training split to be a part of; give samples or tokens")
    if len(weights) < 2:
        table.note("schedule", "changes weights, and a single source needs none; leave it out")
    elif all(weight is None for weight in weights.values()):
        table.note("schedule", "changes weights, but no source has one; give every source a weight")
    return tuple(phases) if len(table.problems) == mistakes else ()


def _start(table: SettingsTable, sequence_length: int) -> int | None:
    """The first sample of a phase."""
    sample, tokens = (
        table.take(name, int, None, rule=lambda value: 0 < value <= _LARGEST_SIZE, says=_COUNT_SAYS)
        for name in ("from_sample", "from_tokens")
    )
    given = [name for name in ("from_sample", "from_tokens") if table.has(name)]
    if not given:
        table.note("from_sample", "is missing; give from_sample or from_tokens, where the phase begins")
    elif len(given) > 1:
        table.note(given[1], f"and {given[0]} both say where the phase begins; give one of them")
        return None
    return sample if tokens is None else -(-tokens // sequence_length)


def _weights(table: SettingsTable, sources: Mapping[str, float | None]) -> tuple[float, ...] | None:
    """The weights of a phase in the order of the sources; None where there is a mistake."""
    mistakes = len(table.problems)
    inner = table.table("weights", required=True)
    if len(table.problems) > mistakes:
        return None
    found: list[float] = []
    for source in sources:
        says = "a finite number, 0 or more (0 leaves the source out from there on)"
        weight = inner.take(source, float, 0.0, required=True, rule=lambda value: value >= 0, says=says)
        found.append(weight or 0.0)
    inner.finish()
    if len(table.problems) == mistakes and not any(found):
        table.note("weights", "are all 0; at least one must be above 0")
    return tuple(found) if len(table.problems) == mistakes else None
