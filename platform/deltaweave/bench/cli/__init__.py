"""The commands of `deltaweave bench`.

- `merge_commands`: `merge`.
- `peer_commands`: `peers`.
- `change_commands`: `read`, `read-peers`, `ingest` and `decay`.
- `limit_commands`: `limits`.
- `running_cases`: progress and failures of the commands that run cases.
"""

from __future__ import annotations

from deltaweave.bench.cli.change_commands import of_changes
from deltaweave.bench.cli.limit_commands import of_limits
from deltaweave.bench.cli.merge_commands import bench
from deltaweave.bench.cli.peer_commands import of_peers

__all__ = ["bench", "of_changes", "of_limits", "of_peers"]
