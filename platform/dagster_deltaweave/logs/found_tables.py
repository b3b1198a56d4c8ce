"""Finds the Delta tables below a directory, and describes each by its log, without Spark."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dagster_deltaweave.logs.delta_log import DeltaLog
from dagster_deltaweave.storage import file_system, local_path, redacted, without_query
from deltaweave.errors import SourceError

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

_LOG = "_delta_log"

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class FoundTable:
    """A table, as its log describes it.

    Attributes:
        path: The names of the directories from the root to it.
        location: The table's path or URI.
        schema: The table's newest schema, as the JSON of Delta's log.
        description: The table's comment in SQL, or None.
    """

    path: tuple[str, ...]
    location: str
    schema: str
    description: str | None


def find_tables(
    root: str, levels: int, is_excluded: Callable[[tuple[str, ...]], bool]
) -> list[FoundTable]:
    """Find the tables below a root, in the order of their paths.

    Directories inside of a table are not looked at, nor are those whose name begins with `.` or
    `_`. A table whose log cannot be understood is left out, with a warning in the log.

    Args:
        root: A path or a URI.
        levels: How many directories a table is away from the root, at most.
        is_excluded: Whether a directory is not looked at, by the names from the root to it.

    Raises:
        SourceError: The root does not exist, or the storage or a log cannot be read, also because
            it was removed meanwhile. A part of the tables is never taken for all of them.
        StatementError: The root is a URI that holds credentials.
    """
    store, base = file_system(root)
    local = local_path(root)
    start = without_query(root) if local is None else str(local.absolute())
    query = "" if local is not None or "?" not in root else f"?{root.partition('?')[2]}"
    try:
        return [
            table
            for place, path in _below(store, base, start, (), levels, is_excluded)
            if (table := _described(place, path, query)) is not None
        ]
    except OSError as error:
        raise SourceError(
            f"it cannot be listed: {redacted(error)}",
            table=without_query(root),
            operation="looking for tables",
            state="What was found before stays.",
            hint="Check the root, and that the storage can be read from here.",
        ) from None


def _below(
    store: FileSystem,
    directory: str,
    location: str,
    path: tuple[str, ...],
    levels: int,
    is_excluded: Callable[[tuple[str, ...]], bool],
) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the locations and paths of directories with a log."""
    from pyarrow.fs import FileSelector, FileType

    infos = store.get_file_info(FileSelector(directory))
    names = sorted(info.base_name for info in infos if info.type == FileType.Directory)
    if _LOG in names:
        yield location, path
    elif len(path) < levels:
        for name in names:
            inner = (*path, name)
            if not name.startswith((".", "_")) and not is_excluded(inner):
                place = f"{location.rstrip('/')}/{name}"
                yield from _below(store, f"{directory}/{name}", place, inner, levels, is_excluded)


def _described(location: str, path: tuple[str, ...], query: str) -> FoundTable | None:
    if not path:
        _logger.warning("%s is a table itself: look in the directory above it.", location)
        return None
    try:
        metadata = DeltaLog(location + query).metadata() or {}
        schema, description = metadata.get("schemaString"), metadata.get("description")
    except OSError:
        raise
    except Exception as error:  # Arrow and logs of other writers raise many kinds
        _logger.warning("The log of %s is left out: %s", location, redacted(error))
        return None
    if not isinstance(schema, str):
        return None  # a log without a commit is no table
    return FoundTable(path, location, schema, description or None)
