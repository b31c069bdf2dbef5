"""Makes `megatron_indices.npz` and `megatron_kernels.json` with megatron-core, and is the oracle of the parity tests.

Run it in an environment that has the extra `parity` (megatron-core 0.16.1, torch, CPU only):

    python tests/golden/make_megatron.py

It writes them beside itself. In the archive, `cases` is JSON text of a list of cases; `table` is JSON text of a list
of name, dtype and shape; the elements of the arrays lie end to end in one array per dtype, in the order of the table.
For each case number C, split S and member M there are ``C/S/M/{document,sample,shuffle}_index``; blended splits also
have ``C/S/{dataset_index,dataset_sample_index}``. The JSON file holds digests of what Megatron's compiled helpers make
of inputs too large to keep.
"""

import hashlib
import json
import tempfile
from collections import OrderedDict
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

SPLITS = ("train", "valid", "test")
RANDOM_CASES = 24
ARCHIVE = Path(__file__).with_name("megatron_indices.npz")
KERNELS = Path(__file__).with_name("megatron_kernels.json")


@dataclass(frozen=True)
class Case:
    """One call of Megatron's builder.

    Attributes:
        lengths: tokens of every sequence of every source.
        sequence_length: tokens per sample.
        seed: of the shuffles.
        split: split string.
        weights: one per source, or None.
        samples: wanted of train, valid and test; None asks for one pass.
        add_extra_token: whether samples overlap by one token.
        keep_last_partial: whether the validation split keeps a short last sample.
    """

    lengths: tuple[tuple[int, ...], ...]
    sequence_length: int
    seed: int
    split: str
    weights: tuple[float, ...] | None
    samples: tuple[int | None, int | None, int | None]
    add_extra_token: bool = True
    keep_last_partial: bool = False

    @staticmethod
    def from_json(value: dict[str, Any]) -> "Case":
        """A case from the JSON form of `dataclasses.asdict`."""
        return Case(
            **{
                **value,
                "lengths": tuple(tuple(lengths) for lengths in value["lengths"]),
                "weights": None if value["weights"] is None else tuple(value["weights"]),
                "samples": tuple(value["samples"]),
            }
        )


SplitArrays = dict[str, Any]
"""``members``: list of (document_index, sample_index, shuffle_index); ``blend``: None or its two arrays."""


class _Tokenizer:
    vocab_size = 1000
    eod = 999

    @property
    def unique_identifiers(self) -> OrderedDict[str, str]:
        return OrderedDict({"class": "none"})


def _write(prefix: Path, lengths: tuple[int, ...]) -> None:
    """Writes a pair whose sequences lie in documents of one to three, so that the two units differ."""
    from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder

    builder = IndexedDatasetBuilder(f"{prefix}.bin", dtype=np.uint16)
    start, width = 0, 1
    while start < len(lengths):
        document = list(lengths[start : start + width])
        builder.add_document(np.zeros(sum(document), dtype=np.uint16), document)
        start, width = start + width, width % 3 + 1
    builder.finalize(f"{prefix}.idx")


def run_megatron(case: Case) -> dict[str, SplitArrays | None]:
    """What Megatron's builder makes of a case: for each split its arrays, or None where it builds none."""
    import torch
    from megatron.core.datasets.blended_dataset import BlendedDataset
    from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
    from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig

    torch.distributed.get_rank = lambda *_, **__: 0  # asked for although nothing is distributed
    with tempfile.TemporaryDirectory() as folder:
        prefixes = [str(Path(folder) / f"source{place}") for place in range(len(case.lengths))]
        for prefix, lengths in zip(prefixes, case.lengths, strict=True):
            _write(Path(prefix), lengths)
        config = GPTDatasetConfig(
            random_seed=case.seed,
            sequence_length=case.sequence_length,
            blend=(prefixes, None if case.weights is None else list(case.weights)),
            split=case.split,
            path_to_cache=str(Path(folder) / "cache"),
            num_dataset_builder_threads=1,
            tokenizer=_Tokenizer(),
            reset_position_ids=False,
            reset_attention_mask=False,
            eod_mask_loss=False,
            drop_last_partial_validation_sequence=not case.keep_last_partial,
            add_extra_token_to_sequence=case.add_extra_token,
        )
        built = BlendedMegatronDatasetBuilder(GPTDataset, list(case.samples), lambda: True, config).build()
        found: dict[str, SplitArrays | None] = {}
        for split, dataset in zip(SPLITS, built, strict=True):
            if dataset is None:
                found[split] = None
                continue
            blended = isinstance(dataset, BlendedDataset)
            members = dataset.datasets if blended else [dataset]
            found[split] = {
                "members": [
                    tuple(np.array(array) for array in (one.document_index, one.sample_index, one.shuffle_index))
                    for one in members
                ],
                "blend": (np.array(dataset.dataset_index), np.array(dataset.dataset_sample_index)) if blended else None,
            }
        return found


def random_case(seed: int) -> Case:
    """A case that Megatron can build: in every split that is not empty, every source has enough tokens for a sample.

    (Megatron loops forever or asserts otherwise.) About a fifth of the sequences are empty.
    """
    random = np.random.default_rng(seed)
    while True:
        sources = int(random.integers(1, 10)) if random.random() < 0.6 else 1
        sequence_length = int(random.integers(2, 65))
        lengths = []
        for _ in range(sources):
            count = int(random.integers(3, 80))
            longest = int(random.choice([3, 20, 3 * sequence_length]))
            tokens = random.integers(1, longest + 1, size=count) * (random.random(count) > 0.2)
            lengths.append(tuple(int(token) for token in tokens))
        split = str(random.choice(["98,1,1", "1,1", "969, 30, 1", "100,0,0", "0.7,0.2,0.1", "8,1,1", "0.6,0.3,0.1"]))
        weights = None
        if sources > 1 and random.random() < 0.7:
            nice = random.random() < 0.5
            weights = tuple(float(random.integers(1, 11)) if nice else float(random.random() + 0.01) for _ in lengths)
        samples = tuple(
            int(random.integers(1, 400)) if weights is not None or random.random() < 0.6 else None for _ in SPLITS
        )
        case = Case(
            lengths=tuple(lengths),
            sequence_length=sequence_length,
            seed=int(random.integers(0, 2**32)),
            split=split,
            weights=weights,
            samples=(samples[0], samples[1], samples[2]),
            add_extra_token=bool(random.random() < 0.75),
            keep_last_partial=sources == 1 and bool(random.random() < 0.5),
        )
        if _can_be_built(case):
            return case


def _can_be_built(case: Case) -> bool:
    proportions = [float(part) for part in case.split.split(",")]
    proportions += [0.0] * (3 - len(proportions))
    edges = np.concatenate([[0.0], np.cumsum(np.array(proportions) / np.sum(proportions))])
    for split, proportion in enumerate(proportions):
        for lengths in case.lengths:
            start, end = (round(float(edges[place]) * len(lengths)) for place in (split, split + 1))
            needed = case.sequence_length + int(case.add_extra_token)
            if case.samples[split] is not None and (case.weights is not None or len(case.lengths) == 1):
                needed = 1  # repeated until there are enough
            if proportion > 0 and sum(lengths[start:end]) < needed:
                return False
    return True


def named_cases() -> list[Case]:
    """Cases that each stand for one rule."""
    ramp = tuple(range(1, 41))
    cases = [
        Case(
            lengths=((0, 0, 5, 5),), sequence_length=4, seed=1234, split="1", weights=None, samples=(None, None, None)
        ),
        Case(lengths=((5, 5),), sequence_length=4, seed=1234, split="1", weights=None, samples=(2, None, None)),
        Case(lengths=((3,),), sequence_length=4, seed=1234, split="1", weights=None, samples=(3, None, None)),
        Case(
            lengths=((4, 4, 4),),
            sequence_length=4,
            seed=7,
            split="1",
            weights=None,
            samples=(9, None, None),
            add_extra_token=False,
        ),
        Case(
            lengths=((5, 5, 1),),
            sequence_length=4,
            seed=7,
            split="0,1",
            weights=None,
            samples=(None, None, None),
            keep_last_partial=True,
        ),
    ]
    # 820 tokens, 102 samples of 8 per epoch: 81 of the last epoch's are 79.4 %, 82 are 80.4 %
    cases += [
        Case(lengths=(ramp,), sequence_length=8, seed=0, split="1", weights=None, samples=(102 + extra, None, None))
        for extra in (0, 1, 80, 81, 82, 102, 150)
    ]
    for weights in (
        (1.0,) * 9,
        tuple(float(place) for place in range(1, 10)),
        (50.0, 25.0, 15.0, 5.0, 3.0, 2.0),
        (0.3, 0.7),
    ):
        cases.append(
            Case(
                lengths=(ramp,) * len(weights),
                sequence_length=8,
                seed=1234,
                split="9,1",
                weights=weights,
                samples=(600, 30, 1),
            )
        )
    for samples in (None, 100, 100_000):
        cases.append(
            Case(
                lengths=(ramp, ramp[10:], ramp[:20]),
                sequence_length=8,
                seed=3,
                split="1",
                weights=None,
                samples=(samples, None, None),
            )
        )
    return cases


def nice_weights() -> list[list[float]]:
    """Weights with exact ties, where a product that is not rounded by itself changes the blend."""
    return [
        [0.3, 0.7],
        [0.5, 0.3, 0.2],
        [1.0] * 10,
        [float(weight) for weight in range(1, 11)],
        [50.0, 25.0, 15.0, 5.0, 3.0, 2.0],
        [1.0] * 50,
        [float(weight % 7 + 1) for weight in range(200)],
    ]


def normalise(weights: list[float]) -> Any:
    """Weights over their NumPy sum."""
    values = np.array(weights, dtype=np.float64)
    return values / np.sum(values)


def digest(*arrays: Any) -> str:
    """SHA-256 over dtype, shape and bytes of arrays."""
    state = hashlib.sha256()
    for array in arrays:
        state.update(f"{array.dtype.name}{list(array.shape)}".encode())
        state.update(np.ascontiguousarray(array).tobytes())
    return state.hexdigest()


def megatron_blend(weights: Any, size: int) -> tuple[Any, Any]:
    """What Megatron's compiled helper makes of weights that are normalised already."""
    from megatron.core.datasets import helpers

    dataset_index, dataset_sample_index = np.zeros(size, dtype=np.int16), np.zeros(size, dtype=np.int64)
    helpers.build_blending_indices(dataset_index, dataset_sample_index, weights, len(weights), size, False)
    return dataset_index, dataset_sample_index


def megatron_exhaustive(sizes: list[int]) -> tuple[Any, Any]:
    """What Megatron's compiled helper makes of members to be used up."""
    from megatron.core.datasets import helpers

    dataset_index, dataset_sample_index = np.zeros(sum(sizes), dtype=np.int16), np.zeros(sum(sizes), dtype=np.int64)
    helpers.build_exhaustive_blending_indices(
        dataset_index, dataset_sample_index, np.array(sizes, dtype=np.int64), len(sizes)
    )
    return dataset_index, dataset_sample_index


def megatron_sample_index(lengths: list[int], sequence_length: int, extra: bool, drop_last: bool) -> Any:
    """What Megatron's compiled helper makes of one epoch in file order."""
    from megatron.core.datasets import helpers

    sizes = np.array(lengths, dtype=np.int32)
    documents = np.arange(len(lengths), dtype=np.int32)
    return helpers.build_sample_idx(sizes, documents, sequence_length, 1, sum(lengths), drop_last, extra)


def make_kernels() -> dict[str, Any]:
    """Inputs and digests for the compiled helpers."""
    blends = [
        {"weights": weights, "size": 50_000, "sha256": digest(*megatron_blend(normalise(weights), 50_000))}
        for weights in nice_weights()
    ]
    exhaustive = [
        {"sizes": sizes, "sha256": digest(*megatron_exhaustive(sizes))}
        for sizes in ([1], [7, 1], [100, 100, 100], [1000, 500, 250, 125, 1], list(range(1, 60)), [3] * 40)
    ]
    partial = []
    # Above 2**24 tokens single precision miscounts the samples: one too few, exact, one too many.
    for lengths, length in (
        ([40_000_001, 41_920_001], 4096),
        ([17_000_000, 41_591], 4999),
        ([17_000_000, 41_592], 4999),
        ([2_000_000_000] * 9, 1_048_575),
    ):
        for extra in (False, True):
            rows = megatron_sample_index(list(lengths), length, extra, drop_last=False)
            exact = -(-(sum(lengths) - int(extra)) // length)
            partial.append(
                {
                    "lengths": list(lengths),
                    "sequence_length": length,
                    "extra": extra,
                    "miscount": len(rows) - 1 - exact,
                    "sha256": digest(rows),
                }
            )
    return {"blends": blends, "exhaustive": exhaustive, "kept_partial": partial}


def main() -> None:
    """Writes both files. In the archive arrays of one dtype lie end to end: small ones would be mostly headers."""
    cases = named_cases() + [random_case(seed) for seed in range(RANDOM_CASES)]
    table: list[list[Any]] = []
    flat: dict[str, list[Any]] = {}

    def add(name: str, array: Any) -> None:
        table.append([name, array.dtype.name, list(array.shape)])
        flat.setdefault(array.dtype.name, []).append(array.reshape(-1))

    for number, case in enumerate(cases):
        for split, found in run_megatron(case).items():
            if found is None:
                continue
            for place, indices in enumerate(found["members"]):
                for name, array in zip(("document", "sample", "shuffle"), indices, strict=True):
                    add(f"{number}/{split}/{place}/{name}_index", array)
            if found["blend"] is not None:
                add(f"{number}/{split}/dataset_index", found["blend"][0])
                add(f"{number}/{split}/dataset_sample_index", found["blend"][1])
    arrays: dict[str, Any] = {dtype: np.concatenate(parts) for dtype, parts in flat.items()}
    arrays["cases"] = np.array(json.dumps([asdict(case) for case in cases]))
    arrays["table"] = np.array(json.dumps(table))
    np.savez_compressed(ARCHIVE, **arrays)
    KERNELS.write_text(json.dumps(make_kernels(), indent=1) + "\n")
    print(f"{ARCHIVE.name}: {len(cases)} cases, {len(table)} arrays, {ARCHIVE.stat().st_size} bytes")


if __name__ == "__main__":
    main()
