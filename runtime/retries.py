"""When a failed request to a store is made again: the rule that both sides share, under its name of this room."""

from gristmill.formats.retries import Retries, ShortReadError, is_passing, status_of

__all__ = ["is_passing", "Retries", "ShortReadError", "status_of"]
