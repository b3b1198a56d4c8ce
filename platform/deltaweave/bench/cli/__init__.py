"""The commands of `deltaweave bench`.

- `merge_commands`: `merge` and `peers`.
- `change_commands`: `read`, `read-peers`, `ingest` and `decay`.
- `limit_commands`: `limits`.
"""

from __future__ import annotations

from deltaweave.bench.cli.change_commands import of_changes
from deltaweave.bench.cli.limit_commands import of_limits
from deltaweave.bench.cli.merge_commands import bench

__all__ = ["bench", "of_changes", "of_limits"]
