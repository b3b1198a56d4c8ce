"""Other table formats with which the benchmark compares deltaweave.

- `peer_process`: creates an environment for a peer, and starts a process in it.
- `peer_program`: the program that runs there; it imports nothing from deltaweave.
- `iceberg`: Apache Iceberg: its release, settings, merges and upserts.
- `hudi`: Apache Hudi: its release, settings and upserts.
- `upserts`: one batch of upserts, in the form that each format takes.
- `merge_report`: the times of the engine and of Iceberg.
"""

from __future__ import annotations

from deltaweave.bench.peers.iceberg import ICEBERG, MODES
from deltaweave.bench.peers.merge_report import PeersReport, compare, has_deletion_vectors
from deltaweave.bench.peers.peer_process import Peer, PeerError, session_conf
from deltaweave.bench.peers.upserts import (
    AFTER,
    OPERATIONS,
    PARQUET,
    PLAIN,
    UPSERT,
    SqlUpsert,
    upsert_job,
)

__all__ = [
    "AFTER",
    "ICEBERG",
    "MODES",
    "OPERATIONS",
    "PARQUET",
    "PLAIN",
    "UPSERT",
    "Peer",
    "PeerError",
    "PeersReport",
    "SqlUpsert",
    "compare",
    "has_deletion_vectors",
    "session_conf",
    "upsert_job",
]
