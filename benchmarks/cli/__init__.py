"""The commands of `python -m benchmarks`.

- `merge_commands`: `merge`.
- `peer_commands`: `peers`.
- `change_commands`: `read`, `read-peers`, `ingest` and `decay`.
- `limit_commands`: `limits`.
- `running_cases`: progress and failures of the commands that run cases.
"""

from __future__ import annotations

import sys

try:
    from benchmarks.cli.change_commands import of_changes
    from benchmarks.cli.limit_commands import of_limits
    from benchmarks.cli.merge_commands import bench as app
    from benchmarks.cli.peer_commands import of_peers
except ModuleNotFoundError as error:
    sys.exit(f"The benchmarks need {error.name}: pip install -e '.[benchmarks]'.")

__all__ = ["app"]

for commands in (of_peers, of_changes, of_limits):
    app.add_typer(commands)
