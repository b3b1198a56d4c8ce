"""What tests of merges on the driver share: whether one was done there, and what it left."""

from __future__ import annotations

from typing import Any

import pytest

from deltaweave import Table
from deltaweave.engine.write import changes


def written_on_driver(patch: pytest.MonkeyPatch) -> list[Any]:
    """What merges on the driver will have written; nothing is added for other merges."""
    written: list[Any] = []
    write = changes.write_on_driver

    def spy(*arguments: Any) -> Any:
        written.append(write(*arguments))
        return written[-1]

    patch.setattr(changes, "write_on_driver", spy)
    return written


def rows_of(table: Table) -> list[tuple[Any, ...]]:
    """A table's rows, in one order for any values."""
    return sorted((tuple(row) for row in table.read().collect()), key=repr)
