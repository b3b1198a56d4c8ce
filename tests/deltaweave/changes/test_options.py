"""The public functions take the options of change data capture as these are declared."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import MISSING, fields
from typing import Any

import pytest

from deltaweave import MergeOnReadTable, apply_changes
from deltaweave.changes.options import ChangeOptions, EventOptions, MergeOnReadOptions


def declared(options: type[EventOptions]) -> dict[str, object]:
    """The options and their defaults."""
    without = inspect.Parameter.empty
    return {f.name: without if f.default is MISSING else f.default for f in fields(options)}


@pytest.mark.parametrize(
    ("function", "options"),
    [(apply_changes, ChangeOptions), (MergeOnReadTable, MergeOnReadOptions)],
)
def test_a_function_takes_each_option_with_its_default(
    function: Callable[..., Any], options: type[EventOptions]
) -> None:
    keywords = inspect.signature(function).parameters
    given = {name: keywords[name].default for name in declared(options)}
    assert given == declared(options)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"keys": "id"}, "keys is a list"),
        ({"keys": []}, "keys is a list"),
        ({"column_list": ["v"], "except_column_list": ["w"]}, "column_list and except_column_list"),
        ({"stored_as_scd_type": 3}, "stored_as_scd_type is '3'; known are 1, 2."),
        ({"track_history_column_list": ["v"]}, "go with stored_as_scd_type 2."),
        (
            {
                "stored_as_scd_type": "2",
                "track_history_column_list": ["v"],
                "track_history_except_column_list": ["w"],
            },
            "exclude each other",
        ),
    ],
)
def test_options_that_contradict_each_other_have_a_problem(
    given: dict[str, Any], problem: str
) -> None:
    options = ChangeOptions(**{"keys": ["id"], "sequence_by": "at", **given})
    assert problem in (options.problem or "")


def test_options_that_fit_have_no_problem() -> None:
    assert ChangeOptions(keys=["id"], sequence_by="at").problem is None
    histories: dict[str, Any] = {"stored_as_scd_type": "2", "track_history_column_list": ["v"]}
    assert ChangeOptions(keys=["id"], sequence_by="at", **histories).problem is None
