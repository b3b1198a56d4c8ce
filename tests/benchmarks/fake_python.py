"""The environment of a peer, complete, whose python is a shell script."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

from benchmarks.peers.spark_peer import SparkPeer


def write_python(peer: SparkPeer, directory: Path, script: str) -> None:
    """Write the environment; `$1` of the script is `-I`, `$2` the program, `$3` its argument."""
    environment = peer.environment(directory)
    python = environment / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f"#!/bin/sh\n{dedent(script)}\n")
    python.chmod(0o755)
    (environment / "deltaweave-made-it-with").write_text(peer.pyspark)
