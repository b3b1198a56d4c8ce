"""Tables of a Hive metastore are merged into by their names."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.programs import outcome_of

pytestmark = [pytest.mark.minutes, pytest.mark.full_matrix]  # Derby makes 60 tables first


def test_tables_of_a_hive_metastore_are_created_and_merged_into_by_name(tmp_path: Path) -> None:
    # In a directory of its own, where Derby writes its log.
    program = "tests.deployment.hive_merges"
    outcome = outcome_of(program, str(tmp_path), timeout=300, directory=tmp_path).found

    assert outcome["catalog"] == "HiveExternalCatalog"
    assert (tmp_path / "metastore").is_dir()
    assert outcome["created"] == [True, False]
    before = [[1, "before"], [2, "before"]]
    by_text = [[1, "before"], [2, "by text"], [3, "by text"]]
    assert outcome["after_text"] == [2, by_text, before]
    assert outcome["after_clauses"] == [2, by_text, [[1, "by clauses"], [2, "before"]]]
    assert outcome["by_asset"] == [[[1, "by asset"]], 2]
    assert outcome["by_schema"] == [[[1, "by schema"]], 2]
    assert outcome["tables"] == {"bronze": ["orders"], "gold": ["orders", "refunds", "returns"]}
    assert outcome["provider"] == "delta"
    assert outcome["places"] == [
        f"file:{tmp_path}/warehouse/{name}"
        for name in ("bronze.db/orders", "gold.db/orders", "gold.db/returns")
    ]
