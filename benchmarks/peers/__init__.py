"""Other table formats with which the benchmarks compare deltaweave.

- `peer`: defines a peer.
- `delta_rs`: delta-rs: its merges of our own tables, in this process.
- `iceberg`: Apache Iceberg: its release, its merges and its upserts.
- `hudi`: Apache Hudi: its release and its upserts.
- `spark_peer`: a peer's own environment, and its process there.
- `peer_program`: the program that runs there; it imports nothing from deltaweave.
- `report`: the times of the engine and of its peers.
"""
