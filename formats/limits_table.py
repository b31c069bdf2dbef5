"""How much of a source is taken: its own limits, and its share of a budget of tokens for the whole recipe.

A limit is a prefix: the first documents in the order of the plan. What lies behind them is not read where it can be
told beforehand that it will not be needed.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from gristmill.formats.settings_table import SettingsTable

__all__ = ["Budget", "Limits", "note_shares", "read_budget", "read_limits"]

_LARGEST = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The most that is taken of a source; None for all.

    Attributes:
        documents: documents that are kept.
        tokens: their tokens, EODs included.
        input_bytes: bytes of input as they are stored, read split by split.
    """

    documents: int | None = None
    tokens: int | None = None
    input_bytes: int | None = None

    @property
    def any(self) -> bool:
        """Whether there is a limit at all."""
        return any(value is not None for value in (self.documents, self.tokens, self.input_bytes))


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Tokens for the whole recipe, dealt to the sources by weight.

    Attributes:
        tokens: of all sources together; None for no budget.
        margin: share that is read beyond what a sample says is needed, for what cleaning and deduplication drop.
    """

    tokens: int | None = None
    margin: float = 0.2

    def share(self, weights: Sequence[float | None], number: int) -> int | None:
        """Tokens of a source; None where there is no budget."""
        if self.tokens is None:
            return None
        shares = [1.0 if weight is None else weight for weight in weights]
        return round(self.tokens * shares[number] / sum(shares))


def read_limits(table: SettingsTable) -> Limits:
    """Reads the limits of a source's table."""

    def limit(name: str) -> int | None:
        return table.take(name, int, None, rule=lambda value: 0 < value <= _LARGEST, says="a positive integer")

    return Limits(documents=limit("max_documents"), tokens=limit("max_tokens"), input_bytes=limit("max_bytes"))


def read_budget(table: SettingsTable) -> Budget:
    """Reads the table `[budget]`."""
    usual = Budget()
    tokens = table.take("tokens", int, None, rule=lambda value: 0 < value <= _LARGEST, says="a positive integer")
    says = "a number of 0 or more"
    margin = table.take("margin", float, usual.margin, rule=lambda value: value >= 0, says=says)
    table.finish()
    return Budget(tokens=tokens, margin=usual.margin if margin is None else margin)


def note_shares(top: SettingsTable, budget: Budget, ids: Sequence[str], weights: Sequence[float | None]) -> None:
    """Notes the sources to which a budget leaves no token, by id; no document of theirs could be taken.

    Args:
        top: the recipe.
        budget: what is dealt.
        ids: the sources.
        weights: their weights.
    """
    if budget.tokens is None or not ids:
        return
    if not sum(1.0 if weight is None else weight for weight in weights):
        top.note("budget", "is dealt by weight, but every weight is 0")
        return
    for number, (name, weight) in enumerate(zip(ids, weights, strict=True)):
        if budget.share(weights, number) == 0:
            held = "" if weight is None else f", whose weight is {weight:g}"
            remedy = "raise the weight or budget.tokens, or give each source max_tokens in place of a budget"
            top.note("budget", f'leaves no token to source "{name}"{held}; {remedy}')
