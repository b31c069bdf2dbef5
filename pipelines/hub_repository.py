"""A dataset's repository at one commit: its listings, each asked for once, and what its card says of its files."""

import functools
from collections.abc import Mapping
from typing import Any

from gristmill.formats.hub_table import HubDataset
from gristmill.formats.storage import read_bytes
from gristmill.pipelines.hub import HubEntry, list_hub
from gristmill.pipelines.hub_file_system import hub_url
from gristmill.pipelines.hub_layout import Patterns, card_head, chosen_patterns

__all__ = ["HubRepository"]

_CARD = "README.md"


class HubRepository:
    """A repository.

    Attributes:
        dataset: id of the dataset.
        commit: the commit.
    """

    def __init__(self, dataset: str, commit: str) -> None:
        self.dataset = dataset
        self.commit = commit
        self._below: dict[str, list[HubEntry]] = {}

    def below(self, folder: str) -> list[HubEntry]:
        """The files below a folder, by path; errors as of `list_hub`."""
        if folder not in self._below:
            self._below[folder] = list_hub(self.dataset, self.commit, folder)
        return self._below[folder]

    def url(self, path: str) -> str:
        """URL of a file."""
        return hub_url(self.dataset, self.commit, path)

    def patterns(self, hub: HubDataset, key: str) -> Patterns:
        """Where the files of a part of the dataset are; errors as of `chosen_patterns`."""
        return chosen_patterns(hub, {} if hub.data_files else self.head, key)

    @functools.cached_property
    def head(self) -> Mapping[str, Any]:
        """What the head of the card holds."""
        listed = list_hub(self.dataset, self.commit, recursive=False)
        if not any(entry.path == _CARD for entry in listed):
            return {}
        return card_head(read_bytes(self.url(_CARD)).decode("utf-8", "replace"))
