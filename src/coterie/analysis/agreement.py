"""How often two clients are in the same group: what the evidence of any grouping method says about who resembles whom."""

import numpy as np
from scipy.cluster.hierarchy import leaves_list, linkage
from scipy.sparse import csr_array
from scipy.spatial.distance import squareform

from coterie.analysis.findings import Findings
from coterie.analysis.records import Cluster
from coterie.core.arrays import Array, Doubles, Ints


def agreements(findings: Findings, clients: Ints) -> dict[str, Doubles]:
    """By method under test that groups: (P, P) shares of the seeds in which two of these clients, ascending, end in the same group.

    Groups that live for one round (FedSim's) are counted over the rounds in which both clients took part.
    """
    records, scope = findings.records, findings.scope
    places, found = np.arange(len(clients)), {}
    for label in findings.roles.methods:
        if label in records.groups:
            found[label] = together([(places, records.groups[label][seed, scope.last][clients]) for seed in scope.seeds], len(clients))
        elif label in records.clusters:
            pieces = [_among(piece, clients) for (seed, _), piece in records.clusters[label].items() if seed in scope.seeds]
            found[label] = together(pieces, len(clients))
    return {label: table for label, table in found.items() if table.any()}


def _among(piece: Cluster, clients: Ints) -> Cluster:
    """A cluster's clients that are among these, by their places there, and their labels."""
    members, labels = piece
    place = np.minimum(np.searchsorted(clients, members), len(clients) - 1)
    own = clients[place] == members
    return place[own], labels[own]


def together(pieces: list[tuple[Array, Array]], clients: int) -> Doubles:
    """The share of the pieces (clients, labels) with both of two clients in which their labels are equal; a label of -1 is none."""
    placed = [(members[labels >= 0], labels[labels >= 0]) for members, labels in pieces]
    width = 1 + max((int(labels.max()) for _, labels in placed if len(labels)), default=0)
    same = _pairs([(members, i * width + labels) for i, (members, labels) in enumerate(placed)], clients)
    met = _pairs([(members, np.full(len(members), i)) for i, (members, _) in enumerate(placed)], clients)
    return np.divide(same, met, out=np.zeros_like(same), where=met > 0)


def _pairs(placed: list[tuple[Array, Array]], clients: int) -> Doubles:
    """(N, N) in how many places two clients are together."""
    rows, columns = (np.concatenate([piece[part] for piece in placed] or [np.zeros(0, int)]) for part in (0, 1))
    where = csr_array((np.ones(len(rows)), (rows, columns)), shape=(clients, int(columns.max(initial=0)) + 1))
    return np.asarray((where @ where.T).toarray())


def order_of(table: Doubles, truth: Array | None) -> Ints:
    """Clients in an order that puts those grouped together side by side: by true group where known, then as a dendrogram's leaves."""
    if len(table) < 2:
        return np.arange(len(table))
    apart = squareform(np.clip(1 - (table + table.T) / 2, 0, 1) * (1 - np.eye(len(table))), checks=False)
    leaves = leaves_list(linkage(apart, "average")).astype(np.int64)
    return np.asarray(leaves if truth is None else leaves[np.argsort(truth[leaves], kind="stable")])
