"""The decorators take the options of change data capture as the engine declares them."""

# No `from __future__ import annotations`: Dagster resolves fields by their annotations.

import inspect
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from datetime import timedelta
from typing import Annotated, Any

import pytest
from dagster import Resolvable, Resolver

from dagster_deltaweave import (
    CdcAssetComponent,
    MergeOnReadAssetComponent,
    cdc_asset,
    merge_on_read_asset,
)
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


@dataclass(frozen=True, kw_only=True)
class OfYaml(ChangeOptions, Resolvable):
    """The options, with SQL alone in place of Columns."""

    sequence_by: str
    apply_as_deletes: str | None = None
    apply_as_truncates: str | None = None
    late_by: Annotated[
        timedelta, Resolver(lambda _, days: timedelta(days=days), model_field_type=float)
    ] = timedelta(days=7)


def test_dagster_reads_the_options_from_yaml() -> None:
    text = "keys: [id]\nsequence_by: at\nlate_by: 3\nstored_as_scd_type: 2"
    options = OfYaml.resolve_from_yaml(text)
    assert (options.keys, options.late_by) == (["id"], timedelta(days=3))
    assert options.keeps_histories
