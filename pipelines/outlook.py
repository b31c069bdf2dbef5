"""What a recipe will give, told before anything is built: the `gristmill plan` command.

Token counts come from the corpus where one is there already, else from the inputs' sizes and a small sample. From there
on everything is worked out as the index stage does it, so what is said of samples, epochs and sizes is what will be
built, as far as the counts are right. Nothing is written.
"""

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from gristmill.formats.errors import GristmillError
from gristmill.formats.index_forecast import IndexForecast, MemberForecast, SplitForecast, forecast_index, range_tokens
from gristmill.formats.index_plan import IndexSettings, MemberPlan, MemberSource, ShardIdentity
from gristmill.formats.index_sources import index_sources
from gristmill.formats.indexed import HEADER_BYTES
from gristmill.formats.manifest import MANIFEST_NAME, Manifest, read_manifest
from gristmill.formats.origins import FOOTER_BYTES, RUN_DTYPE
from gristmill.formats.recipe import Recipe, read_recipe
from gristmill.formats.schedule import Phase
from gristmill.formats.storage import exists, join
from gristmill.pipelines.estimate import estimate_source
from gristmill.pipelines.field_check import check_fields
from gristmill.pipelines.inputs import find_inputs
from gristmill.pipelines.streamed_sources import streamed_sources
from gristmill.tokenize.encode import Encoder
from gristmill.tokenize.engine import choose_engine
from gristmill.tokenize.load import resolve_tokenizer

__all__ = ["add_arguments", "Counts", "counts_of", "Outlook", "outlook_of", "run"]

_MANY_PASSES = 4.0
_SMALL_SAMPLE = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """What a recipe will give.

    Attributes:
        lines: the answer for people.
        warnings: what to look at before a run, as sentences.
        problems: what would stop the run, as far as it is known.
    """

    lines: tuple[str, ...]
    warnings: tuple[str, ...]
    problems: tuple[GristmillError, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Documents and tokens by source.

    Attributes:
        says: where they are from.
        documents: documents of each source, in the recipe's order.
        tokens: tokens of each source.
        shards: shards of each source.
        token_bytes: bytes of a token.
        sources: the sources as index sets see them.
        of_member: tokens of a member.
        warnings: what is to be said of them.
    """

    says: str
    documents: tuple[int, ...]
    tokens: tuple[int, ...]
    shards: tuple[int, ...]
    token_bytes: int
    sources: tuple[MemberSource, ...]
    of_member: Callable[[MemberPlan], int]
    warnings: tuple[str, ...]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's options."""
    parser.add_argument("recipe", help="path or URL of the recipe")
    parser.add_argument("--output", metavar="FOLDER", help="look there for a corpus instead of the recipe's output")
    parser.add_argument("--estimate", action="store_true", help="estimate from the inputs even if a corpus is there")


def run(arguments: argparse.Namespace) -> int:
    """Prints the outlook; returns 1 when the run would be stopped, else 0."""
    recipe = read_recipe(arguments.recipe, output=arguments.output)
    outlook = outlook_of(recipe, estimate=arguments.estimate)
    for line in outlook.lines:
        print(line)
    for warning in outlook.warnings:
        print(f"warning: {warning}")
    for problem in outlook.problems:
        print(f"problem: {problem}")
    return 1 if outlook.problems else 0


def outlook_of(recipe: Recipe, *, estimate: bool = False) -> Outlook:
    """Works out what a recipe will give.

    Args:
        recipe: the recipe.
        estimate: whether to estimate token counts even if a corpus is there.

    Raises:
        SettingsError: the recipe's settings, inputs or tokenizer cannot be followed.
        DataError: the sample of an input, or the corpus that is there, cannot be read.
        StorageError: a file cannot be read.
    """
    counts = counts_of(recipe, estimate=estimate)
    lines = [
        f"corpus {recipe.name!r} -> {recipe.output}",
        f"token counts {counts.says}",
        "",
        *_source_lines(recipe, counts),
    ]
    warnings = list(counts.warnings)
    if recipe.index is None:
        warnings.append("the recipe has no [index], so no order of samples is built and no stream can be opened")
        return Outlook(lines=tuple(lines), warnings=tuple(warnings), problems=())
    try:
        forecast = forecast_index(recipe.index, counts.sources, counts.of_member)
    except GristmillError as error:
        return Outlook(lines=tuple(lines), warnings=tuple(warnings), problems=(error,))
    for split in forecast.splits:
        lines += ["", *_split_lines(recipe.index, split)]
        warnings += _split_warnings(split)
    lines += ["", _sizes(counts, forecast)]
    return Outlook(lines=tuple(lines), warnings=tuple(warnings), problems=forecast.problems)


# Where the counts are from


def counts_of(recipe: Recipe, *, estimate: bool = False) -> Counts:
    """Documents and tokens of each source, of the corpus that is there or estimated.

    Args:
        recipe: the recipe.
        estimate: whether to estimate even if a corpus is there.

    Raises:
        SettingsError: the recipe's inputs or tokenizer cannot be followed.
        DataError: the sample of an input, or the corpus that is there, cannot be read.
    """
    if not estimate and exists(join(recipe.output, MANIFEST_NAME)):
        manifest = read_manifest(recipe.output)
        if [source.id for source in manifest.sources] == [source.id for source in recipe.sources]:
            return _known_counts(recipe, manifest)
        other = ", ".join(source.id for source in manifest.sources)
        return _estimated_counts(
            recipe, [f"{recipe.output} holds a corpus of other sources ({other}), so its counts are not used"]
        )
    return _estimated_counts(recipe, [])


def _known_counts(recipe: Recipe, manifest: Manifest) -> Counts:
    warnings = []
    if manifest.recipe_digest != recipe.digest():
        warnings.append(
            f"the corpus in {recipe.output} was made from another version of this recipe; its counts hold where only "
            "[index], weights and max_epochs differ (--estimate counts anew)"
        )
    recorded = index_sources(manifest.sources)
    sources = tuple(
        MemberSource(id=given.id, weight=given.weight, max_epochs=given.max_epochs, shards=source.shards)
        for given, source in zip(recipe.sources, recorded, strict=True)
    )
    size = manifest.token_dtype.itemsize
    return Counts(
        says=f"of the corpus that is there, {manifest.tokens:,} tokens in all",
        documents=tuple(source.documents_kept for source in manifest.sources),
        tokens=tuple(source.tokens for source in manifest.sources),
        shards=tuple(len(source.shards) for source in manifest.sources),
        token_bytes=size,
        sources=sources,
        of_member=lambda plan: range_tokens(recipe.output, manifest.source(plan.source), size, plan.start, plan.end),
        warnings=tuple(warnings),
    )


def _estimated_counts(recipe: Recipe, warnings: list[str]) -> Counts:
    inputs = [
        find_inputs(source, f"sources[{number}]", output=recipe.output, checksums=False)
        for number, source in enumerate(recipe.sources)
    ]
    for number, found_files in enumerate(inputs):
        check_fields(found_files, recipe.sources[number], f"sources[{number}]")
    warnings += streamed_sources(recipe.sources, inputs)
    resolved = resolve_tokenizer(recipe.tokenizer.path, recipe.tokenizer.eod)
    engine = choose_engine(resolved, keep_control_tokens=recipe.tokenizer.control_text == "keep").engine
    encoder = Encoder.of(resolved, engine)
    estimates = [
        estimate_source(source, files, lambda texts: int(encoder.encode(texts).lengths.sum()))
        for source, files in zip(recipe.sources, inputs, strict=True)
    ]
    for source, found in zip(recipe.sources, estimates, strict=True):
        if found.sampled < _SMALL_SAMPLE:
            warnings.append(
                f"only {found.sampled} documents of source {source.id!r} were in the sample, so its counts are rough"
            )
    tokens = {source.id: found.tokens for source, found in zip(recipe.sources, estimates, strict=True)}
    documents = {source.id: found.documents for source, found in zip(recipe.sources, estimates, strict=True)}
    files = sum(map(len, inputs))
    stored = _bytes(sum(file.size for group in inputs for file in group))
    return Counts(
        says=f"estimated from {files:,} input files of {stored}; cleaning is counted, copies are not",
        documents=tuple(documents.values()),
        tokens=tuple(tokens.values()),
        shards=tuple(-(-count // recipe.target_tokens) for count in tokens.values()),
        token_bytes=encoder.dtype.itemsize,
        sources=tuple(
            MemberSource(
                id=source.id,
                weight=source.weight,
                max_epochs=source.max_epochs,
                shards=(ShardIdentity("", "", documents[source.id]),),
            )
            for source in recipe.sources
        ),
        of_member=lambda plan: tokens[plan.source] * (plan.end - plan.start) // max(1, plan.source_sequences),
        warnings=tuple(warnings),
    )


# What is said


def _source_lines(recipe: Recipe, counts: Counts) -> Iterator[str]:
    rows = [["source", "documents", "tokens", "shards", "bytes of shards"]]
    sizes = _shard_bytes(counts)
    for number, source in enumerate(recipe.sources):
        rows.append(
            [
                source.id,
                f"{counts.documents[number]:,}",
                f"{counts.tokens[number]:,}",
                f"{counts.shards[number]:,}",
                _bytes(sizes[number]),
            ]
        )
    if len(recipe.sources) > 1:
        totals = [sum(counts.documents), sum(counts.tokens), sum(counts.shards)]
        rows.append(["all", *(f"{total:,}" for total in totals), _bytes(sum(sizes))])
    yield from _table(rows)


def _shard_bytes(counts: Counts) -> list[int]:
    """Bytes of `.bin`, `.idx` and `.rec` files by source; the latter as for one input file in each shard."""
    return [
        tokens * counts.token_bytes
        + shards * (HEADER_BYTES + 8 + RUN_DTYPE.itemsize + FOOTER_BYTES)
        + (20 + 4) * documents
        for documents, tokens, shards in zip(counts.documents, counts.tokens, counts.shards, strict=True)
    ]


def _split_lines(settings: IndexSettings, split: SplitForecast) -> Iterator[str]:
    length = settings.sequence_length
    yield f"{split.split}: {_samples(split.samples)} of {length:,} tokens, {split.samples * length:,} tokens"
    if split.members:
        rows = [["source", "share", "samples", "tokens of a pass", "passes", "epochs built", "arrays"]]
        for number, member in enumerate(split.members):
            rows.append(_member_row(split, number, member))
        yield from (f"  {line}" for line in _table(rows))
    for phase in split.rule.phases if split.rule is not None else ():
        yield f"  from sample {phase.from_sample:,}: {_shares(split, phase)}"
    if split.rule is not None and split.rule.kind == "weighted":
        yield f"  the arrays can serve about {_samples(_reach(split))} before a source runs out"
    elif len(split.members) == 1:
        yield f"  the arrays can serve {_samples(split.members[0].report.rows)}"
    for entry in split.left_out:
        yield f"  without {entry.source!r}: {entry.reason}"


def _member_row(split: SplitForecast, number: int, member: MemberForecast) -> list[str]:
    share = "1" if split.rule is None else f"{split.rule.weights[number]:.4g}"
    report = member.report
    return [
        report.source,
        share,
        f"{member.samples:,}",
        f"{report.tokens:,}",
        f"{member.passes:.2f}",
        f"{report.epochs:,}",
        _bytes(member.file_bytes),
    ]


def _shares(split: SplitForecast, phase: Phase) -> str:
    shares = zip(split.members, phase.weights, strict=True)
    return ", ".join(f"{member.report.source} {weight:.4g}" for member, weight in shares if weight > 0)


def _reach(split: SplitForecast) -> int:
    """About how many samples of a weighted split the members' arrays can serve, by the weights of its last phase."""
    if split.rule is None:
        return split.samples
    last = (split.rule.phases[-1] if split.rule.phases else Phase(0, split.rule.weights)).weights
    spare = [
        (member.report.rows - member.samples) / weight
        for member, weight in zip(split.members, last, strict=True)
        if weight > 0
    ]
    return split.samples + int(max(0.0, min(spare)))


def _split_warnings(split: SplitForecast) -> Iterator[str]:
    for member in split.members:
        if member.passes > _MANY_PASSES:
            yield (
                f"{split.split} goes through source {member.report.source!r} {member.passes:.1f} times, so each of its "
                "documents is seen about as often"
            )
    if split.split != "train" and not split.members:
        yield f"{split.split} is empty, so its stream cannot be opened"


def _samples(count: int) -> str:
    return "1 sample" if count == 1 else f"{count:,} samples"


def _sizes(counts: Counts, forecast: IndexForecast) -> str:
    return f"sizes: shards {_bytes(sum(_shard_bytes(counts)))}, index arrays {_bytes(forecast.file_bytes)}"


def _table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Lines of a table: the first column to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        yield "  ".join(cells)


def _bytes(count: int) -> str:
    """A size in decimal units, as disks are sold."""
    size = float(count)
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if size < 1000 or unit == "TB":
            break
        size /= 1000
    return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
