"""The stages that a user names; apart from all that they do, so that help is shown without loading any of it."""

__all__ = ["STAGES"]

STAGES = ("download", "clean", "tokenize", "index", "blend")
"""The stages that a user names, in order."""
