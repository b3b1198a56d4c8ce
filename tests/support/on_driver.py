"""What tests of merges on the driver share: whether one was done there, and what it left."""

from __future__ import annotations

from typing import Any

import pytest

from deltaweave import Table
from deltaweave.engine.backends.local import merge as local_merge


def spied(patch: pytest.MonkeyPatch, module: Any, name: str) -> list[Any]:
    """What a function will have given."""
    given: list[Any] = []
    function = getattr(module, name)

    def spy(*arguments: Any, **named: Any) -> Any:
        given.append(function(*arguments, **named))
        return given[-1]

    patch.setattr(module, name, spy)
    return given


def written_on_driver(patch: pytest.MonkeyPatch) -> list[Any]:
    """What merges on the driver will have written; nothing is added for other merges."""
    return spied(patch, local_merge, "write_files")


def rows_of(table: Table) -> list[tuple[Any, ...]]:
    """A table's rows, in one order for any values."""
    return sorted((tuple(row) for row in table.read().collect()), key=repr)
