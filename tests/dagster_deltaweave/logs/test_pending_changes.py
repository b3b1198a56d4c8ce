"""Which changes are pending, where a table of the pair is missing; read without Spark."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from dagster_deltaweave.logs import pending_changes
from dagster_deltaweave.tables import MergeOnReadLocations
from deltaweave.errors import SourceError

IDS = pa.table({"id": [1, 2]})
NO_BATCH = pa.schema({"id": pa.int64(), "_cdc_batch": pa.int64()}).empty_table()
BATCH = pa.table({"id": [1, 2], "_cdc_batch": [1, 1]})


@pytest.mark.parametrize(
    ("base", "changes", "is_purged", "pending"),
    [
        (False, None, False, None),
        (True, None, False, None),
        # The first append has created the changeset, and the base is next.
        (False, NO_BATCH, False, None),
        (True, NO_BATCH, False, 0),
        (True, BATCH, False, 2),
        (False, BATCH, False, "is missing"),
        (True, BATCH, True, 0),
        (False, BATCH, True, "is missing"),
    ],
)
def test_changes_without_their_base_are_an_error(
    tmp_path: Path, base: bool, changes: pa.Table | None, is_purged: bool, pending: int | str | None
) -> None:
    at = MergeOnReadLocations(str(tmp_path / "base"), str(tmp_path / "changes"), "")
    if base:
        write_deltalake(at.base, IDS)
    if changes is not None:
        ids = [Transaction("deltaweave/batches", 1)] if changes.num_rows else []
        write_deltalake(
            at.changes,
            changes,
            partition_by=["_cdc_batch"],
            commit_properties=CommitProperties(app_transactions=ids),
        )
    if is_purged:
        DeltaTable(at.changes).delete()
    if pending == "is missing":
        with pytest.raises(SourceError, match="Put the base back in this place") as error:
            pending_changes(at)
        assert at.base in str(error.value)
        assert at.changes in str(error.value)
    else:
        found = pending_changes(at)
        assert (found and found.rows) == pending
        assert (found is None) == (pending is None)
