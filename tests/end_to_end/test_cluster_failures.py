"""Whatever fails on a cluster, a merge is applied once or not at all, and its metrics are exact."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.programs import outcome_of

pytestmark = pytest.mark.minutes

STRATEGIES = ["copy-on-write", "deletion-vectors"]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What every scenario of the program came to, by scenario and strategy."""
    tables = str(tmp_path_factory.mktemp("tables"))
    return outcome_of("tests.end_to_end.failing_merges", tables, timeout=540).found


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_merge_without_failures_needs_no_retry(outcomes: dict[str, Any], strategy: str) -> None:
    outcome = outcomes[f"undisturbed/{strategy}"]
    assert (outcome["version"], outcome["attempts"]) == (1, 1)
    expected = [[k, k if k < 90 else -k] for k in range(110)]
    assert outcome["rows"] == expected
    metrics = outcome["metrics"]
    assert metrics["numTargetRowsUpdated"] == metrics["numTargetRowsInserted"] == 10
    assert metrics["numTargetRowsCopied"] == (40 if strategy == "copy-on-write" else 0)


@pytest.mark.parametrize(
    ("scenario", "strategy"),
    [("tasks_fail_once", "deletion-vectors"), ("tasks_run_twice", "copy-on-write")],
)
def test_rows_and_row_metrics_are_exact_though_tasks_run_again(
    outcomes: dict[str, Any], scenario: str, strategy: str
) -> None:
    disturbed, undisturbed = outcomes[f"{scenario}/{strategy}"], outcomes[f"undisturbed/{strategy}"]
    assert disturbed["rows"] == undisturbed["rows"]
    assert row_metrics(disturbed) == row_metrics(undisturbed)
    assert (disturbed["version"], disturbed["attempts"]) == (1, 1)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_source_lost_with_its_executors_is_merged_all_the_same_and_once(
    outcomes: dict[str, Any], strategy: str
) -> None:
    disturbed = outcomes[f"source_lost_once/{strategy}"]
    undisturbed = outcomes[f"undisturbed/{strategy}"]
    assert disturbed["rows"] == undisturbed["rows"]
    assert row_metrics(disturbed) == row_metrics(undisturbed)
    assert (disturbed["version"], disturbed["attempts"]) == (1, 2)


def test_a_source_lost_in_every_attempt_is_an_error_that_may_be_retried(
    outcomes: dict[str, Any],
) -> None:
    assert outcomes["source_lost_always/copy-on-write"] == {
        "error": "SourceLostError",
        "error_class": "DELTA_MERGE_MATERIALIZE_SOURCE_FAILED_REPEATEDLY",
        "version": 0,
    }


def row_metrics(outcome: dict[str, Any]) -> dict[str, int]:
    return {name: value for name, value in outcome["metrics"].items() if "Rows" in name}
