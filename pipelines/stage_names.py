"""The names of the stages, in the order of the graph that declares them."""

from gristmill.pipelines.stage_graph import STAGE_GRAPH

__all__ = ["STAGES"]

STAGES = tuple(stage.name for stage in STAGE_GRAPH)
"""The stages that a user names, in order."""
