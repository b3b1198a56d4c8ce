"""The decorators take the options of change data capture as the engine declares them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import MISSING, fields
from typing import Any

import pytest

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
