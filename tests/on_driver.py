"""Tells whether a merge was done on the driver."""

from __future__ import annotations

from typing import Any

import pytest

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
