"""Tells how far a run is: a few lines for people, or the same as JSON values for machines."""

from collections.abc import Iterator
from typing import Any

from gristmill.formats.recipe import Recipe
from gristmill.pipelines.stage_graph import before
from gristmill.pipelines.stage_state import STALE, RunState, SourceItems

__all__ = ["state_lines", "state_value"]


def state_value(recipe: Recipe, state: RunState) -> dict[str, Any]:
    """The state as JSON values."""
    stages = [
        {
            "stage": entry.stage.name,
            "after": list(before(entry.stage.name)),
            "reads": list(entry.stage.reads),
            "leaves": list(entry.stage.leaves),
            "state": entry.state,
            "why": entry.why,
            "items": [
                {
                    "source": items.source,
                    "step": items.step,
                    "unit": items.unit,
                    "of": items.of,
                    "done": items.done,
                    "stale": items.stale,
                }
                for items in entry.items
            ],
        }
        for entry in state.stages
    ]
    return {
        "corpus": recipe.name,
        "output": recipe.output,
        "stages": stages,
        "manifest": state.manifest,
        "todo": list(state.todo),
        "finished": state.finished,
        "at_work": state.at_work,
    }


def state_lines(recipe: Recipe, state: RunState) -> Iterator[str]:
    """The state for people."""
    yield f"corpus {recipe.name!r} -> {recipe.output}"
    if state.at_work:
        yield f"at work: a run that was {state.at_work}"
    for entry in state.stages:
        yield f"{entry.stage.name:10}{entry.state:9}{entry.why}".rstrip()
        for items in entry.items:
            yield f"  {items.source:18}{items.step:10}{_count(items)}"
    yield f"{'manifest':10}{state.manifest}"
    stale = [entry.stage.name for entry in state.stages if entry.state == STALE]
    if state.finished:
        yield "a run would do nothing"
    elif not state.todo:
        yield "a run would write the manifest"
    else:
        withdraws = f"withdraw {', '.join(stale)}, then " if stale else ""
        yield f"a run would {withdraws}do {', '.join(state.todo)}, and write the manifest"


def _count(items: SourceItems) -> str:
    if items.of is None:
        return f"number of {items.unit} not known yet"
    if items.done is None:
        return f"{items.of:,} {items.unit}, to be looked at when the stages before are done"
    stale = f", {items.stale:,} stale" if items.stale else ""
    return f"{items.done:,} of {items.of:,} {items.unit}{stale}"
