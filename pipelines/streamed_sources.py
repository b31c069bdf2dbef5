"""What a run says of sources that it streams: that it does, through which version of the library, and why."""

from collections.abc import Sequence

from gristmill.formats.recipe import STREAM, SourceSettings
from gristmill.pipelines.inputs import InputFile

__all__ = ["streamed_sources"]


def streamed_sources(sources: Sequence[SourceSettings], inputs: Sequence[Sequence[InputFile]]) -> list[str]:
    """A line for each source that is streamed.

    Args:
        sources: the sources.
        inputs: their input files.
    """
    lines = []
    for source, files in zip(sources, inputs, strict=True):
        if source.hub is None or not files or files[0].format != STREAM:
            continue
        library = files[0].path.rpartition("-by-")[2].replace("-", " ")
        why = "as the recipe asks" if source.hub.streaming else "since it has no file of a format that is read here"
        noun = "shard" if len(files) == 1 else "shards"
        lines.append(f"source {source.id!r}: {source.hub.dataset} is streamed by {library}, {len(files)} {noun}, {why}")
    return lines
