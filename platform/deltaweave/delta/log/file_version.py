"""What distinguishes a data file in one version from the same file in another version.

Files never change, but later commits may mark rows of a file as deleted, or give it row ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql import Column
from pyspark.sql import functions as F

if TYPE_CHECKING:
    from deltaweave.delta.log.actions import Action
    from deltaweave.delta.log.file_list import FileList

_OF_VECTOR = ("storageType", "pathOrInlineDv", "offset")
_OF_ROW_IDS = ("baseRowId", "defaultRowCommitVersion")


class FileVersion(NamedTuple):
    """A file at one version of the table.

    Attributes:
        path: As the log spells it.
        row_ids: Its row ids, if the table tracks rows.
        vector: Its deletion vector; two with the same text mark the same rows.
    """

    path: str
    row_ids: str
    vector: str


def file_versions(files: FileList) -> list[FileVersion]:
    """Return the files as their version of the table has them, in order; a query for many."""
    if files.adds is not None:
        return [_of(add) for add in files.adds]
    found = files.rows_with({"row_ids": _joined(_OF_ROW_IDS), "vector": vector_column()})
    columns = [found[name].to_pylist() for name in FileVersion._fields]
    return [FileVersion(*each) for each in zip(*columns, strict=True)]


def files_not_in(files: FileList, others: FileList) -> FileList:
    """Select the files that are not among the others, or have another deletion vector there."""
    import numpy as np

    known = {(each.path, each.vector) for each in file_versions(others)}
    are_new = [(each.path, each.vector) not in known for each in file_versions(files)]
    return files.where(np.array(are_new, dtype=bool))


def vector_column() -> Column:
    """Build the text of a deletion vector in rows of AddFiles, equal to `FileVersion.vector`."""
    return _joined([f"deletionVector.{name}" for name in _OF_VECTOR])


def _joined(names: Sequence[str]) -> Column:
    texts = [F.coalesce(F.col(name).cast("string"), F.lit("")) for name in names]
    return F.concat_ws("|", *texts)


def vector_of(action: Action) -> str:
    """Return the same text for an AddFile or a RemoveFile."""
    return _texts(action.get("deletionVector") or {}, _OF_VECTOR)


def _of(add: Action) -> FileVersion:
    return FileVersion(add["path"], _texts(add, _OF_ROW_IDS), vector_of(add))


def _texts(values: Action, names: tuple[str, ...]) -> str:
    return "|".join("" if values.get(name) is None else str(values[name]) for name in names)
