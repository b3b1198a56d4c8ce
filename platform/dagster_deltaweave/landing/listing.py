"""Lists landed source partitions: directories on a local disk or on an object store."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from dagster_deltaweave.landing.delivery import (
    Delivery,
    ListedFile,
    digest,
    file_delivery,
    hive_value,
    is_partition,
    problem_of_partition_key,
)
from dagster_deltaweave.landing.disk import (
    deliveries_on_disk,
    delivery_on_disk,
    link_in,
)
from dagster_deltaweave.storage import file_system, local_path, redacted, without_query
from deltaweave.errors import SourceError


def list_deliveries(
    directory: str | Path, marker: str | None, suffix: str = ""
) -> list[Delivery] | None:
    """List the source partitions in a landing directory, unordered; None without a directory.

    Names that begin with `.` or `_` are not partitions. On an object store all objects under the
    directory are listed, a thousand in each request.

    Args:
        directory: A path or a URI.
        marker: Name of the file that is written last; None if sizes have to settle.
        suffix: If it is not empty, files whose names end with it are the partitions, and the marker
            is appended to their names.

    Raises:
        SourceError: The directory cannot be listed.
    """
    try:
        path = local_path(directory)
        if path is None:
            listed = _in_store(str(directory), is_recursive=not suffix)
            # A store has no directories, so an empty one does not exist.
            if not listed:
                return None
            if suffix:
                return list(_landed_files(listed, marker, suffix))
            return list(_landed_directories(listed, marker))
        return list(deliveries_on_disk(path, marker, suffix)) if path.is_dir() else None
    except (OSError, ValueError) as error:
        raise SourceError(
            f"it cannot be listed: {redacted(error)}",
            table=str(directory),
            operation="looking for new partitions",
            state="Nothing was requested; the next tick looks again.",
        ) from None


def partition_path(
    root: str | Path, partition: str, *, follow_links: bool = True, suffix: str = ""
) -> str:
    """Return the directory of a source partition: `<root>/<key>`, Hive's `<root>/<column>=<key>`.

    With a suffix it is the file `<root>/<key><suffix>`, or `<root>/<column>=<key><suffix>`.

    The key is one name in the root: it cannot lead out of it, and it is not a pattern.

    Args:
        root: The landing directory, a path or a URI.
        partition: The partition key.
        follow_links: Whether the directory may be a link or contain links. They may lead to any
            file that this process can read: say False if those who deliver may read less.
        suffix: How the names of files end that are the partitions, such as `.csv`.

    Returns:
        A path, or a URI if the root is one. If neither exists, the first.

    Raises:
        SourceError: The key cannot be a directory's name, several directories have it as their Hive
            value, the root cannot be listed, or a link is refused.
    """
    problem = problem_of_partition_key(partition)
    if problem is not None:
        raise _no_directory(root, partition, problem, "Give the partition a key that is a name.")
    try:
        name = _name(root, partition, suffix)
    except OSError as error:
        raise _no_directory(root, partition, redacted(error)) from None
    path = local_path(root)
    if path is None:
        return f"{without_query(root)}/{name}"
    link = None if follow_links else link_in(path / name)
    if link is not None:
        raise _links_refused(root, partition, link)
    return str(path / name)


def _name(root: str | Path, partition: str, suffix: str) -> str:
    path, name = local_path(root), f"{partition}{suffix}"
    if path is not None:
        if (path / name).exists() or not path.is_dir():
            return name
        names = os.listdir(path)
    else:
        from pyarrow.fs import FileSelector, FileType

        store, base = file_system(root)
        [info] = store.get_file_info([f"{base}/{name}"])
        if info.type != FileType.NotFound:
            return name
        names = [
            each.base_name for each in store.get_file_info(FileSelector(base, allow_not_found=True))
        ]
    found = [
        each
        for each in names
        if each.endswith(suffix)
        and hive_value(each.removesuffix(suffix)) == partition
        and not problem_of_partition_key(each)
    ]
    if len(found) > 1:
        raise _no_directory(root, partition, f"{' and '.join(sorted(found))} are both its own")
    return found[0] if found else name


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


def delivery(
    directory: str | Path, partition: str, marker: str | None, suffix: str = ""
) -> Delivery | None:
    """Return the current state of a source partition in a landing directory; None without one.

    Args:
        directory: A path or a URI.
        partition: The partition.
        marker: Name of the file that is written last, or None for the digest of all files.
        suffix: How the names of files end, if they are the partitions.

    Raises:
        SourceError: The directory cannot be listed.
    """
    try:
        return _one(directory, _name(directory, partition, suffix), marker, suffix)
    except (OSError, ValueError) as error:
        raise SourceError(
            f"it cannot be listed: {redacted(error)}",
            table=without_query(directory),
            operation="looking for a delivery",
            state="Nothing was read.",
        ) from None


def _one(directory: str | Path, name: str, marker: str | None, suffix: str) -> Delivery | None:
    """Find the delivery in the directory or file with this name without looking at others."""
    path = local_path(directory)
    if path is None:
        if suffix:  # listed with the others, because a file's own time is cut to seconds
            files = _in_store(str(directory), is_recursive=False)
            listed = [file for file in files if file.path.startswith(name)]
            found = _landed_files(listed, marker, suffix)
            return next((each for each in found if each.name == name), None)
        uri, mark, query = str(directory).partition("?")
        files = _in_store(f"{uri.rstrip('/')}/{name}{mark}{query}")
        listed = [file._replace(path=f"{name}/{file.path}") for file in files]
        return next(iter(_landed_directories(listed, marker)), None)
    if not path.is_dir():
        return None
    with os.scandir(path) as entries:
        entry = next((each for each in entries if each.name == name), None)
        return None if entry is None else delivery_on_disk(entry, marker, suffix)


def _in_store(uri: str, *, is_recursive: bool = True) -> list[ListedFile]:
    """Return all files in a directory of a store, and in those below it."""
    from pyarrow.fs import FileSelector, FileType

    store, base = file_system(uri)
    infos = store.get_file_info(FileSelector(base, recursive=is_recursive, allow_not_found=True))
    return [
        ListedFile(info.path[len(base) + 1 :], info.size, info.mtime_ns)
        for info in infos
        # Some tools write an object for a directory, which is not a file of a partition.
        if info.type == FileType.File
    ]


def _landed_files(
    listed: Iterable[ListedFile], marker: str | None, suffix: str
) -> Iterator[Delivery]:
    files = {file.path: file for file in listed if "/" not in file.path}
    for name, file in files.items():
        if not is_partition(name, suffix):
            continue
        problem = problem_of_partition_key(name.removesuffix(suffix))
        if problem is not None:
            yield Delivery(name, None, 0, problem=problem)
        elif marker is None:
            yield file_delivery(name, suffix, digest([file]), file.mtime_ns)
        else:
            mark = files.get(f"{name}{marker}")
            fingerprint = None if mark is None else str(mark.mtime_ns)
            found = file_delivery(name, suffix, fingerprint, (mark or file).mtime_ns)
            yield replace(found, files=digest([file]))


def _landed_directories(listed: Iterable[ListedFile], marker: str | None) -> Iterator[Delivery]:
    files: defaultdict[str, list[ListedFile]] = defaultdict(list)
    for file in listed:
        partition, _, path = file.path.partition("/")
        # An object next to the partitions is not a partition.
        if path and is_partition(partition, ""):
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
            fingerprint = None if written is None else str(written)
            yield Delivery(partition, fingerprint, written or changed, files=digest(found))
