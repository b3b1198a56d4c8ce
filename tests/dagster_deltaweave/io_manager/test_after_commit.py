"""Warnings of a run whose rows are committed."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from dagster_deltaweave.io_manager.output import Recording


def test_warnings_of_merge_and_recording_are_in_the_runs_log_and_metadata(
    caplog: pytest.LogCaptureFixture,
) -> None:
    shown: dict[str, Any] = {}
    context: Any = SimpleNamespace(add_output_metadata=shown.update, log=logging.getLogger("run"))
    after = Recording(context, ["Spark does the merge: OverflowError"])

    def fail() -> dict[str, Any]:
        raise OSError("no answer")

    assert after.attempt("the data version", fail) == {}
    with caplog.at_level(logging.WARNING, "run"):
        after.add_metadata({"rows": 1})
    assert [each.getMessage() for each in caplog.records] == [
        "The rows are committed, with a warning: Spark does the merge: OverflowError",
        "The rows are committed, with a warning: the data version is left out: no answer",
    ]
    assert shown["rows"] == 1
    assert shown["deltaweave/warnings"].value.splitlines() == after.warnings
