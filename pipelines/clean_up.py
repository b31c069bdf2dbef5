"""Finds what a corpus does not need any more, stage by stage, and removes it.

What one stage leaves for another goes once the last that reads it has its receipt. The receipt of the stage that left
it is written anew first, with the word that its files were cleared away, so that it stands without them: the corpus
verifies, a rerun finds nothing to do, and a changed setting begins as far back as it must. The price of clearing is
that such a change reads its inputs again.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from gristmill.formats.attempt import is_temporary_name
from gristmill.formats.errors import CorpusError
from gristmill.formats.exclusive import sizes_below
from gristmill.formats.index_set import INDICES_FOLDER, SET_NAME
from gristmill.formats.manifest import MANIFEST_NAME, read_manifest
from gristmill.formats.receipts import STAGES_FOLDER, read_receipt, stage_receipt_path, valid_receipt, write_receipt
from gristmill.formats.storage import base_name, exists, is_local, join, relative_to, remove, remove_tree
from gristmill.pipelines.lock_options import STALE_SECONDS
from gristmill.pipelines.lock_record import HOLDER_NAME, AskService
from gristmill.pipelines.run_lock import working_on

__all__ = ["clean_up", "find_leftovers", "Leftover", "PARTS"]

_THREADS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """What can be cleared away or kept as one.

    Attributes:
        name: as in `--keep-…`.
        says: what it is.
        folder: where it lies; empty for receipts alone.
        stage: the stage that vouches for it; empty where none does.
        samples_of: the stages for which it is samples, and no stage reads it.
        steps: the steps whose items vouch for it.
        needed_until: the stage whose receipt makes it superfluous; empty for the manifest.
    """

    name: str
    says: str
    folder: str = ""
    stage: str = ""
    samples_of: tuple[str, ...] = ()
    steps: tuple[str, ...] = ()
    needed_until: str


PARTS = (
    _Part(
        name="raw",
        says="copies of sources",
        folder="raw",
        stage="download",
        steps=("download",),
        needed_until="tokenize",
    ),
    _Part(
        name="clean",
        says="keys and drops of the deduplication",
        folder="clean",
        stage="clean",
        steps=("scan",),
        needed_until="tokenize",
    ),
    _Part(
        name="spill",
        says="ids before they are shards",
        folder="spill",
        steps=("spill", "encode"),
        needed_until="tokenize",
    ),
    _Part(
        name="rejected",
        says="samples of what was left out",
        folder="rejected",
        samples_of=("clean", "tokenize"),
        needed_until="tokenize",
    ),
    _Part(name="receipts", says="receipts of shards and members", steps=("assemble", "index"), needed_until=""),
)
"""The parts, in the order of the stages that leave them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftover:
    """Files that can go, or that stay for a reason.

    Attributes:
        name: what they are, for people.
        files: their paths.
        size: bytes of all.
        kept: why they stay; empty if they can go.
        stage: the stage whose receipt vouches for them; empty where none does.
        samples_of: the stages whose receipts vouch for them as samples.
        folders: what is empty without them, relative to the corpus.
    """

    name: str
    files: tuple[str, ...]
    size: int
    kept: str = ""
    stage: str = ""
    samples_of: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()


def find_leftovers(corpus: str, keep: Collection[str] = (), *, other_sets: bool = False) -> list[Leftover]:
    """What a corpus does not need any more; writes nothing.

    Args:
        corpus: folder or URL of the corpus.
        keep: names out of `PARTS` that stay.
        other_sets: whether index sets that the manifest does not name can go.

    Raises:
        CorpusError: there is no corpus, or index sets are to go and no manifest says which.
        StorageError: the corpus cannot be listed.
    """
    finished = exists(join(corpus, MANIFEST_NAME))
    if not finished and not exists(join(corpus, STAGES_FOLDER)):
        raise CorpusError(f"{corpus}: neither manifest nor receipts are there, so this is no corpus to clean up")
    if other_sets and not finished:
        raise CorpusError(f"{corpus}: no manifest says which index set is its own; finish it with `gristmill prepare`")
    sizes = sizes_below(corpus)
    temporary = {path: size for path, size in sizes.items() if _is_temporary(relative_to(path, corpus))}
    found = [Leftover(name="temporary files of dead attempts", files=tuple(temporary), size=sum(temporary.values()))]
    rest = {path: size for path, size in sizes.items() if path not in temporary}
    for part in PARTS:
        kept = f"--keep-{part.name}" if part.name in keep else _still_needed(corpus, part, finished=finished)
        found.append(_leftover(corpus, part, rest, kept))
        rest = {path: size for path, size in rest.items() if path not in found[-1].files}
    if other_sets:
        found += _other_sets(corpus, rest)
    return [leftover for leftover in found if leftover.files or _missed(corpus, leftover)]


def clean_up(
    corpus: str,
    keep: Collection[str] = (),
    *,
    other_sets: bool = False,
    stale_after: float = STALE_SECONDS,
    ask: AskService | None = None,
    say: Callable[[str], object] = lambda _: None,
) -> list[Leftover]:
    """Removes what a corpus does not need any more, while no run works on it.

    Args:
        corpus: folder or URL of the corpus.
        keep: names out of `PARTS` that stay.
        other_sets: whether index sets that the manifest does not name go.
        stale_after: seconds of silence after which another run on the corpus counts as gone.
        ask: asks the service of such a run's job whether it goes on.
        say: is told of a run that is gone.

    Returns:
        What was found: removed, or kept for the reason that it names.

    Raises:
        CorpusError: there is no corpus, or a run works on it.
        StorageError: a file cannot be listed, written or removed.
    """
    found = find_leftovers(corpus, keep, other_sets=other_sets)
    with working_on(corpus, runner="gristmill clean-up", stale_after=stale_after, ask=ask, say=say):
        for leftover in found:
            if leftover.kept:
                continue
            if leftover.stage:
                _let_stand_without_files(corpus, leftover.stage)
            for stage in leftover.samples_of:
                _let_stand_without_samples(corpus, stage)
            _remove_all(corpus, leftover)
    return found


def _title(part: _Part) -> str:
    return f"{part.folder}/ ({part.says})" if part.folder else part.says


def _is_temporary(name: str) -> bool:
    """Whether a file is what an attempt, a claim or a sign of life left behind."""
    last = base_name(name)
    return is_temporary_name(last) or name.startswith((f"{STAGES_FOLDER}/{HOLDER_NAME}-", f"{STAGES_FOLDER}/probe"))


def _leftover(corpus: str, part: _Part, sizes: dict[str, int], kept: str) -> Leftover:
    items = join(STAGES_FOLDER, "items")
    folders = [join(items, step) for step in part.steps if step != "index"] + [part.folder] * bool(part.folder)
    if "index" in part.steps:  # those of a set that is not finished are what its next build goes on from
        built = sorted({path for path in sizes if path.startswith(join(corpus, INDICES_FOLDER) + "/")})
        names = (relative_to(path, join(corpus, INDICES_FOLDER)).split("/") for path in built)
        folders += [join(items, "index", name[0]) for name in names if name[1:] == [SET_NAME]]
    inside = tuple(join(corpus, folder) + "/" for folder in folders)
    files = {path: size for path, size in sizes.items() if path.startswith(inside)}
    return Leftover(
        name=_title(part),
        files=tuple(files),
        size=sum(files.values()),
        kept=kept,
        stage=part.stage,
        samples_of=part.samples_of,
        folders=tuple(folders),
    )


def _still_needed(corpus: str, part: _Part, *, finished: bool) -> str:
    """Why a part must stay; empty if it need not."""
    if not part.needed_until:
        return "" if finished else "the corpus is not finished"
    path = stage_receipt_path(corpus, part.needed_until)
    receipt = read_receipt(path)
    if receipt is None or valid_receipt(corpus, path, receipt.digest) is None:
        return f"stage {part.needed_until} is not finished"
    return ""


def _other_sets(corpus: str, sizes: dict[str, int]) -> Iterator[Leftover]:
    own = read_manifest(corpus).index_set
    places = (INDICES_FOLDER, join(STAGES_FOLDER, "items", "index"))
    sets: dict[str, dict[str, int]] = {}
    for path, size in sizes.items():
        for place in places:
            if path.startswith(join(corpus, place) + "/"):
                sets.setdefault(relative_to(path, join(corpus, place)).split("/", 1)[0], {})[path] = size
    for name, files in sorted(sets.items()):
        if name != own:
            folders = tuple(join(place, name) for place in places)
            yield Leftover(name=f"index set {name}", files=tuple(files), size=sum(files.values()), folders=folders)


def _let_stand_without_files(corpus: str, stage: str) -> None:
    """Writes into the receipt of a stage that its files were cleared away."""
    path = stage_receipt_path(corpus, stage)
    receipt = read_receipt(path)
    if receipt is not None and not receipt.cleared:
        write_receipt(path, replace(receipt, files={}, cleared=True))


def _missed(corpus: str, leftover: Leftover) -> bool:
    """Whether receipts vouch for samples, though none is there any more."""
    receipts = (read_receipt(stage_receipt_path(corpus, stage)) for stage in leftover.samples_of)
    return any(receipt is not None and receipt.samples for receipt in receipts)


def _let_stand_without_samples(corpus: str, stage: str) -> None:
    """Takes the samples out of what the receipt of a stage vouches for."""
    path = stage_receipt_path(corpus, stage)
    receipt = read_receipt(path)
    if receipt is not None and receipt.samples:
        write_receipt(path, replace(receipt, samples={}))


def _remove_all(corpus: str, leftover: Leftover) -> None:
    """Removes files, receipts of items first: what they vouch for must not be missed meanwhile."""
    receipts = [path for path in leftover.files if path.startswith(join(corpus, STAGES_FOLDER) + "/")]
    others = [path for path in leftover.files if path not in set(receipts)]
    for paths in (receipts, others):
        _remove_files(paths)
    for folder in leftover.folders if is_local(corpus) else ():
        remove_tree(join(corpus, folder))


def _remove_files(paths: Sequence[str]) -> None:
    with ThreadPoolExecutor(_THREADS) as pool:
        list(pool.map(remove, paths))
