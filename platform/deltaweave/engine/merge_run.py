"""One run of a merge: what every phase needs to know."""

from __future__ import annotations

from dataclasses import dataclass, replace

from deltaweave.delta.commit import Transaction
from deltaweave.delta.statement import ResolvedMerge
from deltaweave.engine.phases import Phases
from deltaweave.engine.preconditions import Preconditions
from deltaweave.engine.settings import MergeSettings
from deltaweave.engine.source import PreparedSource


@dataclass(frozen=True)
class MergeRun:
    """A run of a merge, once its source is prepared.

    Attributes:
        transaction: The transaction that reads the target and is to commit the changes.
        source: The prepared source.
        settings: The settings of the session.
        preconditions: What must still hold of the table at the commit.
        phases: The phases, timed as they run.
    """

    transaction: Transaction
    source: PreparedSource
    settings: MergeSettings
    preconditions: Preconditions
    phases: Phases

    @property
    def statement(self) -> ResolvedMerge:
        """The resolved statement."""
        return self.transaction.merge

    @property
    def table(self) -> str:
        """The target's name in messages."""
        return self.statement.table

    def on(self, transaction: Transaction) -> MergeRun:
        """Return this run with a transaction on a newer version."""
        return replace(self, transaction=transaction)
