"""The marks that a run commits with its rows, so that nothing is applied twice.

What Delta guarantees by itself: of two merges at once the later commit is refused if the earlier
one changed or added files that it read, so no update is lost and no key is inserted twice, with or
without a pool. What it does not: that the same changes are not merged again by a later run, or from
rows computed before an earlier one. For that, a mark: a transaction identifier of the Delta
protocol, an application id with a version, in the same commit as the rows. The commit path reads it
in its own transaction, and Delta refuses the commit if another one of the same id won since then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dagster import AssetKey

from dagster_deltaweave.changes import Changes, application_id
from dagster_deltaweave.declaration import TableDeclaration
from dagster_deltaweave.run_partitions import DELIVERY
from deltaweave.errors import SourceError, StatementError


@dataclass(frozen=True)
class Marks:
    """What a run's rows apply.

    Attributes:
        pairs: Application id to version.
        before: The version that the table must hold of the one id, -1 for none; None if any.
    """

    pairs: Mapping[str, int] = field(default_factory=dict)
    before: int | None = None

    @property
    def pair(self) -> tuple[str, int] | None:
        """The one pair of a merge, if it has one."""
        return next(iter(self.pairs.items()), None)


def marks_of_run(
    asset: AssetKey,
    declaration: TableDeclaration,
    changes: Changes,
    *,
    upstreams: Sequence[AssetKey],
    partitions: Sequence[str],
    tags: Mapping[str, str],
) -> Marks:
    """The marks of a run that adds to its table.

    Args:
        asset: The asset.
        declaration: Its table.
        changes: What its function returned.
        upstreams: The upstreams of which it reads only touched or changed rows: at most one.
        partitions: The run's partitions.
        tags: The run's tags.

    Raises:
        SourceError: The function did not hand back the touched rows that it applied.
        StatementError: The declared idempotency cannot be kept by this run.
    """
    of_upstream = _of_upstream(asset, changes, upstreams)
    if declaration.idempotent_by is None:
        return of_upstream
    if of_upstream.pairs:
        raise _not_idempotent(asset, "touched or changed rows are applied once by themselves.")
    return Marks(dict([_pair(asset, declaration, partitions, tags)]))


def marks_of_refresh(
    asset: AssetKey,
    declaration: TableDeclaration,
    changes: Changes,
    *,
    upstreams: Sequence[AssetKey],
    partitions: Sequence[str],
) -> Marks:
    """The marks of a run that rebuilds its table: every partition in it counts as applied.

    Raises:
        SourceError: The function did not hand back the touched rows that it applied.
        StatementError: What was applied cannot be told.
    """
    if declaration.idempotent_by == "delivery":
        raise _not_idempotent(
            asset,
            "a full refresh cannot know which deliveries its function read.",
            "Declare idempotent_by='partition' to rebuild it, or rebuild it into a new table.",
        )
    if declaration.idempotent_by is None:
        return _of_upstream(asset, changes, upstreams)
    if not partitions:
        raise _not_idempotent(asset, "the full refresh names no partition.")
    return Marks({_partition_id(asset, partition): 0 for partition in partitions})


def _of_upstream(asset: AssetKey, changes: Changes, upstreams: Sequence[AssetKey]) -> Marks:
    """The mark that makes applying touched rows exactly-once; none for all other changes."""
    applied = changes.applied
    if not upstreams and applied is None:
        return Marks()
    if not upstreams or applied is None:
        raise SourceError(
            "it reads touched rows, but the function did not hand back which."
            if upstreams
            else "the function says it applied touched rows, but no input of it reads any.",
            table=asset.to_user_string(),
            hint="Return Changes(rows, applied=<the touched rows that the input gave>).",
        )
    before = -1 if applied.after is None else applied.after
    return Marks({application_id(upstreams[0], asset): applied.until}, before)


def _pair(
    asset: AssetKey,
    declaration: TableDeclaration,
    partitions: Sequence[str],
    tags: Mapping[str, str],
) -> tuple[str, int]:
    if len(partitions) > 1:
        raise _not_idempotent(
            asset,
            f"the run has {len(partitions)} partitions, and a commit marks one.",
            "Run them one by one: backfill with BackfillPolicy.multi_run(1).",
        )
    if declaration.idempotent_by == "partition":
        if not partitions:
            raise _not_idempotent(asset, "the run has no partition.")
        return _partition_id(asset, partitions[0]), 0
    delivery = tags.get(DELIVERY)
    if not delivery:
        raise _not_idempotent(
            asset,
            f"the run has no tag {DELIVERY}.",
            "Let the sensor request it, or give the run the tag of the delivery it applies.",
        )
    of_what = _partition_id(asset, partitions[0]) if partitions else asset.to_user_string()
    # Times count up: an older delivery than the one applied is over. Other names only differ.
    return (of_what, int(delivery)) if delivery.isdecimal() else (f"{of_what}@{delivery}", 0)


def _partition_id(asset: AssetKey, partition: str) -> str:
    return f"{asset.to_user_string()}#{partition}"


def _not_idempotent(asset: AssetKey, problem: str, hint: str | None = None) -> StatementError:
    return StatementError(
        f"idempotent_by cannot be kept: {problem}", table=asset.to_user_string(), hint=hint
    )
