"""Other table formats with which the benchmark compares deltaweave.

- `comparison`: measures a case of MERGE on the engine and on its peers.
- `peer_process`: creates an environment for a peer, and starts a process in it.
- `peer_program`: the program that runs there; it imports nothing from deltaweave.
- `iceberg`: Apache Iceberg: its release, settings, merges and upserts.
- `delta_rs`: delta-rs: its merges of our own tables, in this process.
- `hudi`: Apache Hudi: its release, settings and upserts.
- `upserts`: one batch of upserts, in the form that each format takes.
- `merge_report`: the times of the engine, of Iceberg and of delta-rs.
"""

from __future__ import annotations

from benchmarks.peers.comparison import compare
from benchmarks.peers.delta_rs import delta_rs_versions, has_delta_rs
from benchmarks.peers.iceberg import COPY_ON_WRITE, ICEBERG, MODES
from benchmarks.peers.merge_report import DELTA_RS, PeersReport, has_deletion_vectors
from benchmarks.peers.peer_process import Peer, PeerError, PeerProcess, session_conf
from benchmarks.peers.upserts import (
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
    "COPY_ON_WRITE",
    "DELTA_RS",
    "ICEBERG",
    "MODES",
    "OPERATIONS",
    "PARQUET",
    "PLAIN",
    "UPSERT",
    "Peer",
    "PeerError",
    "PeerProcess",
    "PeersReport",
    "SqlUpsert",
    "compare",
    "delta_rs_versions",
    "has_deletion_vectors",
    "has_delta_rs",
    "session_conf",
    "upsert_job",
]
