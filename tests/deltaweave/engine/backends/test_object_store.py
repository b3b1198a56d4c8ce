"""Merges on the driver and in place into tables in a store that speaks S3's protocol."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.programs import outcome_of
from tests.support.store_merges import LAYOUTS, SECRET

pytestmark = pytest.mark.minutes

UPSERTED = [
    [0, "old", "a"],
    [1, "new", "a"],  # updated
    [2, "new", "b"],  # updated, in another partition
    *[[k, "old", "a"] for k in range(3, 10)],
    [20, "new", "a"],  # inserted
]


@pytest.fixture(scope="module")
def outcome() -> dict[str, Any]:
    """What the program did, which runs once for all."""
    outcome = outcome_of("tests.support.store_merges", timeout=600)
    return outcome.found | {"printed": outcome.printed}


def test_nothing_that_is_printed_holds_the_secret_key(outcome: dict[str, Any]) -> None:
    assert "Spark does the merge: OSError" in outcome["printed"]  # what the engine logs is printed
    assert SECRET not in outcome["printed"]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_driver_merges_into_a_table_in_a_store(outcome: dict[str, Any], layout: str) -> None:
    done = outcome["by_layouts"][f"{layout}, driver"]

    assert done["on_driver"] == 1
    assert done["rows"] == UPSERTED
    assert done["counts"] == [2, 1]
    assert done["wrong_sizes"] == 0


@pytest.mark.parametrize(
    ("layout", "files_in_place"),
    # Rows are marked where there are vectors; rows that may move are written apart.
    [("copy on write", 1), ("change feed", 1), ("vectors", 0), ("partitions", 0)],
)
def test_tasks_rewrite_files_of_a_table_in_a_store(
    outcome: dict[str, Any], layout: str, files_in_place: int
) -> None:
    done = outcome["by_layouts"][f"{layout}, tasks"]

    assert (done["on_driver"], done["in_place"]) == (0, files_in_place)
    assert done["strategy"] == ("deletion-vectors" if layout == "vectors" else "copy-in-place")
    assert done["rows"] == UPSERTED
    assert done["counts"] == [2, 1]
    assert done["wrong_sizes"] == 0


def test_a_large_file_is_sent_in_parts(outcome: dict[str, Any]) -> None:
    done = outcome["of_many_rows"]

    assert done["on_driver"] == 2
    assert done["in_parts"] == 1  # that of the rewritten file; the inserted row fits into one
    assert done["rows"] == [[-1, "x", "y"], [7, "x", "y"]]
    assert done["others_are_kept"]


def test_a_source_that_is_a_table_in_a_store_is_read_without_spark(outcome: dict[str, Any]) -> None:
    assert outcome["of_a_table"] == {"read": [3], "rows": UPSERTED}


def test_a_bucket_with_a_setting_that_only_spark_follows_is_left_to_it(
    outcome: dict[str, Any],
) -> None:
    assert outcome["by_spark_alone"] == [{"by_arrow": 0, "rows": UPSERTED}] * 2


def test_nothing_is_sent_to_a_store_that_is_not_that_of_the_table(outcome: dict[str, Any]) -> None:
    done = outcome["where_arrow_means_another_store"]

    assert done == {"on_driver": 0, "sent": [], "rows": UPSERTED}


def test_a_file_that_arrives_cut_is_deleted_and_spark_does_the_merge(
    outcome: dict[str, Any],
) -> None:
    whole = {"cut": 1, "left": [], "wrong_sizes": 0, "rows": UPSERTED}

    assert outcome["with_a_store_that_loses_bytes"] == [whole] * 2  # on the driver, and in a task
