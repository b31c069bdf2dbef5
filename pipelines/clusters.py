"""Clusters of near duplicates: connected components of verified pairs, and who survives in each.

The survivor of a cluster is its document of the lowest rank, so it depends on the recipe's order alone. In one process
the components are found at once; on a cluster by rounds of two steps on edges dealt out by document, "large star" and
"small star" (Kiveris et al., Connected Components in MapReduce and Beyond, 2014), so that no worker holds all. A few
rounds are enough but for chains of many hundreds of documents, which are then solved in one place.
"""

from collections.abc import Iterable

import numpy as np

from gristmill.pipelines.dedup import packed_losers
from gristmill.pipelines.near_pairs import PAIR_DTYPE

__all__ = ["deal_both", "deal_larger", "large_star", "losers_by_split", "ROUNDS", "small_star", "unfinished"]

ROUNDS = 5
"""Rounds of both steps on a cluster."""


def _joined(groups: Iterable[bytes]) -> np.ndarray:
    return np.unique(np.frombuffer(b"".join(groups), PAIR_DTYPE))


def _edges(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    edges = np.empty(len(one), PAIR_DTYPE)
    edges["first"] = np.minimum(one, other)
    edges["second"] = np.maximum(one, other)
    return np.unique(edges[one != other])


def losers_by_split(groups: Iterable[bytes]) -> list[tuple[int, bytes]]:
    """Who loses: every document of a cluster but the first.

    Args:
        groups: packed `PAIR_DTYPE` edges, in any order and any cut; all of a cluster are among them.

    Returns:
        (split number, its losers as packed `LOSER_DTYPE` records by number), by split number; the first of a cluster
        stays in the place of each.
    """
    edges = _joined(groups)
    ranks, ends = np.unique(np.concatenate([edges["first"], edges["second"]]), return_inverse=True)
    one, other = ends[: len(edges)], ends[len(edges) :]
    labels = np.arange(len(ranks))
    while True:
        low, high = np.minimum(labels[one], labels[other]), np.maximum(labels[one], labels[other])
        if (low == high).all():
            break
        np.minimum.at(labels, high, low)
        while not np.array_equal(labels, shorter := labels[labels]):
            labels = shorter
    lost = labels != np.arange(len(ranks))
    return packed_losers(ranks[lost], ranks[labels[lost]])


def _dealt(partition: np.ndarray, edges: np.ndarray) -> list[tuple[int, bytes]]:
    order = np.argsort(partition, kind="stable")
    numbers, starts = np.unique(partition[order], return_index=True)
    pieces = np.split(edges[order], starts[1:]) if len(numbers) else []
    return [(int(number), piece.tobytes()) for number, piece in zip(numbers, pieces, strict=True)]


def _partition(ranks: np.ndarray, partitions: int) -> np.ndarray:
    with np.errstate(over="ignore"):
        mixed = (ranks ^ (ranks >> np.uint64(32))) * np.uint64(0x9E3779B97F4A7C15)
    numbers: np.ndarray = ((mixed >> np.uint64(32)) % np.uint64(partitions)).astype(np.int64)
    return numbers


def deal_both(packed: bytes, partitions: int) -> list[tuple[int, bytes]]:
    """Edges for `large_star`, each to the partitions of both its ends: (partition, packed (end, other end))."""
    edges = np.frombuffer(packed, PAIR_DTYPE)
    turned = np.empty(len(edges), PAIR_DTYPE)
    turned["first"], turned["second"] = edges["second"], edges["first"]
    both = np.concatenate([edges, turned])
    return _dealt(_partition(both["first"], partitions), both)


def deal_larger(packed: bytes, partitions: int) -> list[tuple[int, bytes]]:
    """Edges for `small_star` and for `losers_by_split` of stars, each to the partition of its later end."""
    edges = np.frombuffer(packed, PAIR_DTYPE)
    return _dealt(_partition(edges["second"], partitions), edges)


def _least(vertices: np.ndarray, neighbours: np.ndarray) -> np.ndarray:
    """For vertices in order, the least neighbour of each, as often as it occurs."""
    begins = np.ones(len(vertices), bool)
    begins[1:] = vertices[1:] != vertices[:-1]
    starts = np.flatnonzero(begins)
    least: np.ndarray = np.minimum.reduceat(neighbours, starts)[np.cumsum(begins) - 1]
    return least


def large_star(groups: Iterable[bytes]) -> bytes:
    """Joins the later neighbours of each document to the earliest of it and all its neighbours."""
    edges = _joined(groups)  # (vertex, neighbour), by vertex
    if not len(edges):
        return b""
    least = np.minimum(_least(edges["first"], edges["second"]), edges["first"])
    later = edges["second"] > edges["first"]
    return _edges(edges["second"][later], least[later]).tobytes()


def small_star(groups: Iterable[bytes]) -> bytes:
    """Joins each document and its earlier neighbours to the earliest of these."""
    edges = _joined(groups)  # (neighbour, vertex), neighbour < vertex
    if not len(edges):
        return b""
    edges = edges[np.argsort(edges["second"], kind="stable")]
    least = _least(edges["second"], edges["first"])
    return np.unique(np.concatenate([_edges(edges["first"], least), _edges(edges["second"], least)])).tobytes()


def unfinished(groups: Iterable[bytes]) -> int:
    """How many documents are the later end of one edge and the earlier of another, or have two earlier ones.

    Args:
        groups: packed edges as `deal_both` deals them.

    Returns:
        0 when every document is in a star, whose centre is the first of its cluster.
    """
    edges = _joined(groups)
    vertices = edges["first"]
    earlier = edges["second"] < vertices
    _, ids = np.unique(vertices, return_inverse=True)
    before = np.bincount(ids, earlier)
    behind = np.bincount(ids, ~earlier)
    return int(((before > 1) | ((before > 0) & (behind > 0))).sum())
