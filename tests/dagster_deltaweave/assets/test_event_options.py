"""The decorators take the options of change data capture as the engine declares them."""

# No `from __future__ import annotations`: Dagster resolves fields by their annotations.

import ast
import inspect
import textwrap
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from datetime import timedelta
from typing import Any

import pytest
from dagster import Resolvable

from dagster_deltaweave import (
    CdcAssetComponent,
    MergeOnReadAssetComponent,
    cdc_asset,
    merge_on_read_asset,
    tables,
)
from dagster_deltaweave.tables import CurrentTableOptions, options_in
from deltaweave import MergeOnReadTable, apply_changes
from deltaweave.changes.options import ChangeOptions, EventOptions, MergeOnReadOptions


@pytest.mark.parametrize(
    ("decorator", "component", "options"),
    [
        (cdc_asset, CdcAssetComponent, ChangeOptions),
        (merge_on_read_asset, MergeOnReadAssetComponent, MergeOnReadOptions),
    ],
)
def test_a_decorator_and_its_component_take_each_option(
    decorator: Callable[..., Any], component: Any, options: type[EventOptions]
) -> None:
    without = inspect.Parameter.empty
    declared = {f.name: without if f.default is MISSING else f.default for f in fields(options)}
    keywords = inspect.signature(decorator).parameters
    assert {name: keywords[name].default for name in declared} == declared
    assert set(declared) <= set(component.model_fields)


@pytest.mark.parametrize(
    ("takes", "options"),
    [
        (apply_changes, ChangeOptions),
        (MergeOnReadTable.__init__, MergeOnReadOptions),
        (cdc_asset, CurrentTableOptions),
        (merge_on_read_asset, tables.MergeOnReadArguments),
    ],
)
def test_what_takes_the_options_hands_each_of_them_on(
    takes: Callable[..., Any], options: type[Any]
) -> None:
    """A keyword that is taken and not handed on would be without effect."""
    assert {each.name for each in fields(options)} <= set(inspect.signature(takes).parameters)
    source = ast.parse(textwrap.dedent(inspect.getsource(takes)))
    calls = [node for node in ast.walk(source) if isinstance(node, ast.Call)]
    [call] = [each for each in calls if ast.unparse(each.func) == "options_of"]
    assert ast.unparse(call.args[0]) == options.__name__
    assert "locals" in {ast.unparse(each.func) for each in calls}


@dataclass(frozen=True, kw_only=True)
class OfYaml(CurrentTableOptions, Resolvable):
    """The options that components inherit, by themselves."""


def test_dagster_reads_the_options_from_yaml() -> None:
    text = "keys: [id]\nsequence_by: at\nlate_by: {days: 3}\nstored_as_scd_type: 2"
    options = OfYaml.resolve_from_yaml(text)
    assert (options.keys, options.late_by) == (["id"], timedelta(days=3))
    assert ChangeOptions(**options_in(CurrentTableOptions, options)).keeps_histories
