"""Defines a peer: a table format whose merges are compared with the engine's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from benchmarks.merge.runner import Clones, Side


class PeerError(RuntimeError):
    """A peer cannot be installed, ended early, or failed."""


class Peer(Protocol):
    """A table format, before it is started."""

    @property
    def name(self) -> str:
        """The name on the command line and in JSON."""

    @property
    def title(self) -> str:
        """The name in sentences and tables."""

    @property
    def modes(self) -> Sequence[str]:
        """The modes in which its merges are compared."""

    def install(self, directory: Path, announce: Callable[[str], object]) -> None:
        """Install what it needs into the directory, unless that is there.

        Raises:
            PeerError: It cannot be installed.
        """

    def started(self, spark: SparkSession, directory: Path) -> AbstractContextManager[RunningPeer]:
        """Start it, with what our session has of memory and cores, until the context ends.

        Raises:
            PeerError: It did not start.
        """


class RunningPeer(Protocol):
    """A table format that does merges."""

    @property
    def versions(self) -> Mapping[str, str]:
        """The versions of what runs, by name."""

    def side(self, clones: Clones) -> Side:
        """Return what merges beside the engine, into the same rows."""
