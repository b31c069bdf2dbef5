"""Schedules for one machine: the stages of a recipe as a Makefile and as a shell script, out of the graph of stages.

Both call `gristmill` once for each job and leave it to the command to know what is finished; dates of files decide
nothing, since a recipe, a tokenizer or an input can change without them. The price is a start of the command for each
stage that is finished. What a name of a file can hold is quoted, and what a line cannot hold is refused.
"""

import shlex
from collections.abc import Sequence

from gristmill.formats.errors import SettingsError
from gristmill.pipelines.stage_graph import StageJob

__all__ = ["check_word", "makefile", "shell_script"]

_HINTS = (
    "# What is finished and unchanged is skipped, so the same command goes on where a run ended. GRISTMILL names",
    "# the program, OPTIONS what else it is told; COMMAND=launch with OPTIONS='--wait ...' runs on Dataflow.",
)


def check_word(what: str, text: str) -> str:
    """Gives a text back that fits into one line of a script.

    Args:
        what: what messages call it.
        text: the text.

    Raises:
        SettingsError: it holds a control character, or bytes that are no UTF-8.
    """
    if any(ord(letter) < 32 or ord(letter) == 127 or 0xD800 <= ord(letter) < 0xE000 for letter in text):
        raise SettingsError(f"{what} {text!r}: no line of a script can hold this name; give it another one")
    return text


def makefile(recipe: str, jobs: Sequence[StageJob], *, output: str | None = None) -> str:
    """A Makefile with a target for each job.

    Args:
        recipe: path or URL of the recipe, as the command line has it.
        jobs: the jobs, in order.
        output: folder or URL to write to instead of the recipe's.

    Raises:
        SettingsError: a name does not fit into a line.
    """
    words = _words(recipe, output).replace("$", "$$")
    names = [job.name for job in jobs]
    lines = [
        "# The stages of a corpus, written by `gristmill stages RECIPE --makefile`.",
        "#",
        "#     make -f FILE                all of them, in order",
        f"#     make -f FILE {names[0]:<15} up to this one",
        "#     make -f FILE status         what is done, and what a run would do",
        "#",
        *_HINTS,
        "",
        "GRISTMILL ?= gristmill",
        "COMMAND ?= prepare",
        "OPTIONS ?=",
        "",
        ".DEFAULT_GOAL := all",
        ".NOTPARALLEL:",
        f".PHONY: all status {' '.join(names)}",
        "",
        f"all: {' '.join(_ends(jobs))}",
        "",
        "status:",
        f"\t@$(GRISTMILL) stages {words}",
    ]
    for job in jobs:
        lines += [
            "",
            " ".join([f"{job.name}:", *job.after]),
            f"\t$(GRISTMILL) $(COMMAND) {words} --from {job.first} --to {job.last} $(OPTIONS)",
        ]
    return "\n".join(lines) + "\n"


def shell_script(recipe: str, jobs: Sequence[StageJob], *, output: str | None = None) -> str:
    """A script for a POSIX shell that runs the jobs it is given, or all.

    Args:
        recipe: path or URL of the recipe, as the command line has it.
        jobs: the jobs, in order.
        output: folder or URL to write to instead of the recipe's.

    Raises:
        SettingsError: a name does not fit into a line.
    """
    words = _words(recipe, output)
    names = " ".join(job.name for job in jobs)
    lines = [
        "#!/bin/sh",
        "# The stages of a corpus, written by `gristmill stages RECIPE --shell`.",
        "#",
        "#     sh FILE                all of them, in order",
        f"#     sh FILE {jobs[-1].name:<14} only this one; the ones before must be done",
        "#     sh FILE status         what is done, and what a run would do",
        "#",
        *_HINTS,
        "set -eu",
        "",
        "gristmill() {",
        "    command=$1; shift",
        "    # shellcheck disable=SC2086 # both may be several words",
        f'    ${{GRISTMILL:-env gristmill}} "$command" {words} "$@"',
        "}",
        "",
        "stage() {",
        "    # shellcheck disable=SC2086 # as above",
        '    gristmill "${COMMAND:-prepare}" --from "$1" --to "$2" ${OPTIONS:-}',
        "}",
        "",
        'if [ "$#" -eq 0 ]; then',
        f"    set -- {names}",
        "fi",
        'for name in "$@"; do',
        '    case "$name" in',
        *(f"    {job.name}) stage {job.first} {job.last} ;;" for job in jobs),
        "    status) gristmill stages ;;",
        "    *)",
        f'        echo "$name: no such stage; there are {names}, and status" >&2',
        "        exit 2",
        "        ;;",
        "    esac",
        "done",
    ]
    return "\n".join(lines) + "\n"


def _words(recipe: str, output: str | None) -> str:
    """The words that every call has, quoted for a shell."""
    path = check_word("recipe", recipe)
    words = [f"./{path}" if path.startswith("-") else path]
    if output is not None:
        words.append(f"--output={check_word('--output', output)}")
    return shlex.join(words)


def _ends(jobs: Sequence[StageJob]) -> list[str]:
    """The jobs that no other one waits for."""
    waited_for = {name for job in jobs for name in job.after}
    return [job.name for job in jobs if job.name not in waited_for]
