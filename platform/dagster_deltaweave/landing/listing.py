"""Lists landed source partitions: directories on a local disk or on an object store."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

from dagster_deltaweave.landing.delivery import (
    Delivery,
    ListedFile,
    digest,
    hive_value,
    is_partition,
    problem_of_partition_key,
)
from dagster_deltaweave.landing.disk import (
    deliveries_on_disk,
    link_in,
    marked_delivery,
    measured_delivery,
)
from dagster_deltaweave.storage import file_system, local_path, redacted, without_query
from deltaweave.errors import SourceError


def list_deliveries(directory: str | Path, marker: str | None) -> list[Delivery] | None:
    """The source partitions in a landing directory, unordered; None if there is no directory.

    Names that begin with `.` or `_` are not partitions. On an object store all objects under the
    directory are listed, a thousand in each request.

    Args:
        directory: A path or a URI.
        marker: Name of the file that is written last; None if sizes have to settle.

    Raises:
        SourceError: The directory cannot be listed.
    """
    try:
        path = local_path(directory)
        if path is None:
            listed = _in_store(str(directory))
            # A store has no directories, so an empty one does not exist.
            return list(_landed(listed, marker)) if listed else None
        return list(deliveries_on_disk(path, marker)) if path.is_dir() else None
    except (OSError, ValueError) as error:
        raise SourceError(
            f"it cannot be listed: {redacted(error)}",
            table=str(directory),
            operation="looking for new partitions",
            state="Nothing was requested; the next tick looks again.",
        ) from None


def partition_path(root: str | Path, partition: str, *, follow_links: bool = True) -> str:
    """The directory of a source partition: `<root>/<key>`, or Hive's `<root>/<column>=<key>`.

    The key is one name in the root: it cannot lead out of it, and it is not a pattern.

    Args:
        root: The landing directory, a path or a URI.
        partition: The partition key.
        follow_links: Whether the directory may be a link or contain links. They may lead to any
            file that this process can read: say False if those who deliver may read less.

    Returns:
        A path, or a URI if the root is one. If neither directory exists, the first.

    Raises:
        SourceError: The key cannot be a directory's name, several directories have it as their Hive
            value, the root cannot be listed, or a link is refused.
    """
    problem = problem_of_partition_key(partition)
    if problem is not None:
        raise _no_directory(root, partition, problem, "Give the partition a key that is a name.")
    try:
        name = _directory_name(root, partition)
    except OSError as error:
        raise _no_directory(root, partition, redacted(error)) from None
    path = local_path(root)
    if path is None:
        return f"{without_query(root)}/{name}"
    link = None if follow_links else link_in(path / name)
    if link is not None:
        raise _links_refused(root, partition, link)
    return str(path / name)


def _directory_name(root: str | Path, partition: str) -> str:
    path = local_path(root)
    if path is not None:
        if (path / partition).exists() or not path.is_dir():
            return partition
        names = os.listdir(path)
    else:
        from pyarrow.fs import FileSelector, FileType

        store, base = file_system(root)
        [info] = store.get_file_info([f"{base}/{partition}"])
        if info.type != FileType.NotFound:
            return partition
        names = [
            each.base_name for each in store.get_file_info(FileSelector(base, allow_not_found=True))
        ]
    found = [
        each
        for each in names
        if hive_value(each) == partition and not problem_of_partition_key(each)
    ]
    if len(found) > 1:
        raise _no_directory(root, partition, f"{' and '.join(sorted(found))} are both its own")
    return found[0] if found else partition


def _links_refused(root: str | Path, partition: str, link: str) -> SourceError:
    return SourceError(
        f"{link!a} of the source partition {partition!a} is a link, and links are not followed.",
        table=without_query(root),
        operation="reading a source partition",
        state="Nothing was read.",
        hint="Let the files themselves be delivered. Find out who made the link: it may lead to "
        "what that user cannot read.",
    )


def _no_directory(
    root: str | Path, partition: str, problem: str, hint: str | None = None
) -> SourceError:
    return SourceError(
        f"the source partition {partition!a} has no directory: {problem}.",
        table=without_query(root),
        operation="reading a source partition",
        state="Nothing was read.",
        hint=hint,
    )


def delivery(directory: str | Path, partition: str, marker: str | None) -> Delivery | None:
    """The current state of one source partition in a landing directory; None if there is none.

    Args:
        directory: A path or a URI.
        partition: The partition.
        marker: Name of the file that is written last, or None for the digest of all files.

    Raises:
        SourceError: The directory cannot be listed.
    """
    try:
        return _one(directory, _directory_name(directory, partition), marker)
    except (OSError, ValueError) as error:
        raise SourceError(
            f"it cannot be listed: {redacted(error)}",
            table=without_query(directory),
            operation="looking for a delivery",
            state="Nothing was read.",
        ) from None


def _one(directory: str | Path, name: str, marker: str | None) -> Delivery | None:
    """The delivery in the directory with this name, found without listing the others."""
    path = local_path(directory)
    if path is None:
        uri, mark, query = str(directory).partition("?")
        files = _in_store(f"{uri.rstrip('/')}/{name}{mark}{query}")
        listed = [file._replace(path=f"{name}/{file.path}") for file in files]
        return next(iter(_landed(listed, marker)), None)
    if not path.is_dir():
        return None
    with os.scandir(path) as entries:
        entry = next((each for each in entries if each.name == name and each.is_dir()), None)
        if entry is None:
            return None
        return measured_delivery(entry) if marker is None else marked_delivery(entry, marker)


def _in_store(uri: str) -> list[ListedFile]:
    """Everything under a directory of a store."""
    from pyarrow.fs import FileSelector, FileType

    store, base = file_system(uri)
    infos = store.get_file_info(FileSelector(base, recursive=True, allow_not_found=True))
    return [
        ListedFile(info.path[len(base) + 1 :], info.size, info.mtime_ns)
        for info in infos
        # Some tools write an object for a directory, which is not a file of a partition.
        if info.type == FileType.File
    ]


def _landed(listed: Iterable[ListedFile], marker: str | None) -> Iterator[Delivery]:
    files: defaultdict[str, list[ListedFile]] = defaultdict(list)
    for file in listed:
        partition, _, path = file.path.partition("/")
        # An object next to the partitions is not a partition.
        if path and is_partition(partition):
            files[partition].append(ListedFile(path, file.size, file.mtime_ns))
    for partition, found in files.items():
        changed = max(file.mtime_ns for file in found)
        problem = problem_of_partition_key(partition)
        if problem is not None:
            yield Delivery(partition, None, 0, problem=problem)
        elif marker is None:
            yield Delivery(partition, digest(found), changed)
        else:
            written = next((file.mtime_ns for file in found if file.path == marker), None)
            yield Delivery(partition, None if written is None else str(written), written or changed)
