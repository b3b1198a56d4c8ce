"""What a run shows of an error that ends its step."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from dagster import (
    DagsterInstance,
    InputContext,
    IOManager,
    OutputContext,
    asset,
    materialize,
)

from dagster_deltaweave.io_manager import retry_run_if_transient, step_attempts
from deltaweave.errors import CommitConflictError, DeltaweaveError, StatementError


class Failing(IOManager):
    def __init__(self, error: DeltaweaveError) -> None:
        self.error = error

    def handle_output(self, context: OutputContext, obj: Any) -> None:
        with retry_run_if_transient(
            0 if context.step_context.previous_attempt_count else 1, context
        ):
            raise self.error

    def load_input(self, context: InputContext) -> Any: ...


def errors_of(error: DeltaweaveError) -> list[str]:
    """The texts that the run logs as errors."""

    @asset
    def orders() -> int:
        return 1

    with DagsterInstance.ephemeral() as instance:
        done = materialize(
            [orders],
            resources={"io_manager": Failing(error)},
            instance=instance,
            raise_on_error=False,
        )
        assert not done.success
        logs = instance.all_logs(done.run_id)
        return [
            each.user_message
            for each in logs
            if not each.is_dagster_event and each.level == logging.ERROR
        ]


def test_an_error_that_ends_a_step_is_one_entry_of_the_log() -> None:
    wrong = StatementError("there is no column x.", table="orders")
    assert errors_of(wrong) == [str(wrong)]


def test_an_error_is_logged_only_when_the_last_attempt_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(step_attempts, "_SECONDS_BEFORE_RETRY", 0)
    lost = CommitConflictError("another commit won.", table="orders")
    assert errors_of(lost) == [str(lost)]
