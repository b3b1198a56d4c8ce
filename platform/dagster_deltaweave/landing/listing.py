"""Lists landed source partitions: directories on a local disk or on an object store.

A partition is a directory, or a single file if the landing directory's partitions have a suffix. On
a local disk, links are followed. `look_at_landing` says which deliveries are complete. The sensor's
cursor only saves work: if it is lost, sizes have to settle again, and runs are looked up again.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

from dagster_deltaweave.storage import file_system, local_path, redacted, without_query
from deltaweave.errors import NOTHING_READ, NOTHING_REQUESTED, SourceError

# What leads to another directory, forms a Hadoop pattern, or is invalid in Dagster's keys.
_NO_KEY = re.compile(r"[/\\*?\[\]{}\x00-\x1f\x7f\ud800-\udfff]|\.\.\.|^\.{0,2}$")


@dataclass(frozen=True)
class Delivery:
    """The current state of a source partition in the landing directory.

    Attributes:
        partition: Its partition key: the name of the directory, or of the file without its suffix,
            or the part of it after `=`.
        fingerprint: The marker's modification time or, without a marker, a digest of all names,
            sizes and times. None while the marker is missing or the directory is empty.
        changed_at: When the storage last saw it change, in ns since 1970. No writer sets this time:
            on a disk it is the change time of inodes, so a directory that was moved here, or copied
            with its times, has a new one.
        marked_at: When the storage last saw the marker change, in ns since 1970; 0 without a
            marker, and on an object store, where the fingerprint is that time.
        directory: The name of the directory or file if it is not the partition key, else empty.
        problem: Why it cannot be requested, or None.
        files: Digest of names, sizes and times of all its files, if they were listed.
    """

    partition: str
    fingerprint: str | None
    changed_at: int
    marked_at: int = 0
    directory: str = ""
    problem: str | None = None
    files: str | None = None

    @property
    def name(self) -> str:
        """The name of its directory or file."""
        return self.directory or self.partition

    @property
    def identity(self) -> str | None:
        """Identifies the delivery among the partition's, even if their markers' times are equal."""
        return f"{self.fingerprint}@{self.marked_at}" if self.marked_at else self.fingerprint


def problem_of_partition_key(partition: str) -> str | None:
    """Return why a text cannot be a partition key and a directory's name; None if it can."""
    found = _NO_KEY.search(partition)
    if found is None:
        return None
    return f"{found.group()!a} cannot be in a partition key" if found.group() else "it is empty"


def hive_value(name: str) -> str | None:
    """Return the unescaped value in a directory's name of the form `<column>=<value>`, or None."""
    column, equals, value = name.partition("=")
    return unquote(value) if column and equals else None


class ListedFile(NamedTuple):
    """A file of a delivery: its path below the partition, its size and its time."""

    path: str
    size: int
    mtime_ns: int


def is_partition(name: str, suffix: str) -> bool:
    """Return whether a directory, or file with the suffix, is a partition: no `.` or `_` first.

    A suffix in another case, as in `2024-01-02.CSV`, makes it one that cannot be requested.
    """
    has_suffix = name.lower().endswith(suffix.lower()) and len(name) > len(suffix)
    return not name.startswith((".", "_")) and has_suffix


def problem_of_name(name: str, suffix: str) -> str | None:
    """Return why a directory, or file with the suffix, cannot be requested; None if it can."""
    if not name.endswith(suffix):
        return f"its name does not end with {suffix!a}, but in another case"
    return problem_of_partition_key(name.removesuffix(suffix))


def file_delivery(
    name: str, suffix: str, fingerprint: str | None, changed_at: int, marked_at: int = 0
) -> Delivery:
    """Return the delivery in a file with this name."""
    return Delivery(name.removesuffix(suffix), fingerprint, changed_at, marked_at, name)


def files_digest(files: Iterable[ListedFile]) -> str | None:
    """Return a digest of names, sizes and times of the files; None if there are none."""
    described = "\n".join(f"{path}\t{size}\t{mtime}" for path, size, mtime in sorted(files))
    if not described:
        return None
    return hashlib.sha256(described.encode(errors="surrogateescape")).hexdigest()[:20]


def deliveries_on_disk(root: Path, marker: str | None, suffix: str) -> Iterator[Delivery]:
    """List the source partitions in a directory on a local disk: files if there is a suffix."""
    with os.scandir(root) as entries:
        for entry in entries:
            if not is_partition(entry.name, suffix):
                continue
            try:
                found = delivery_on_disk(entry, marker, suffix)
                if found is not None:
                    yield found
            except FileNotFoundError:
                # Removed or renamed since it was listed: the next tick sees the result.
                continue
            except OSError as error:
                # One directory must not stop the others. Only the system's message is shown.
                yield Delivery(entry.name, None, 0, problem=error.strerror or "it cannot be read")


def delivery_on_disk(entry: os.DirEntry[str], marker: str | None, suffix: str) -> Delivery | None:
    """Return the delivery in a directory, or with a suffix in a file; None for the other kind."""
    if entry.is_dir() == bool(suffix):
        return None
    problem = problem_of_name(entry.name, suffix)
    if problem is not None:
        return Delivery(entry.name, None, 0, problem=problem)
    if suffix:
        return _delivered_file(entry, marker, suffix)
    return _measured_delivery(entry) if marker is None else _marked_delivery(entry, marker)


def _delivered_file(entry: os.DirEntry[str], marker: str | None, suffix: str) -> Delivery:
    """Return the delivery in a file, complete once the file `<its name><marker>` exists."""
    mtime, changed = _times(entry.path)
    if entry.is_symlink():
        changed = max(changed, _links_changed(entry.path))
    if marker is None:
        fingerprint = files_digest([ListedFile("", entry.stat().st_size, mtime)])
        return file_delivery(entry.name, suffix, fingerprint, changed)
    try:
        mtime, marked_at = _times(f"{entry.path}{marker}")
    except FileNotFoundError:
        return file_delivery(entry.name, suffix, None, changed)
    return file_delivery(entry.name, suffix, str(mtime), max(changed, marked_at), marked_at)


def _marked_delivery(entry: os.DirEntry[str], marker: str) -> Delivery:
    """Return the delivery in a directory, which is complete once its marker exists."""
    changed = _directory_changed(entry)
    try:
        mtime, marked_at = _times(f"{entry.path}/{marker}")
    except FileNotFoundError:
        return Delivery(entry.name, None, changed)
    # The directory's own time changes if a delivery is replaced by moving another one there.
    return Delivery(entry.name, str(mtime), max(changed, marked_at), marked_at)


class _FileTimes(NamedTuple):
    """When a file was modified, and when the file or a link to it changed, in ns since 1970."""

    modified: int
    changed: int


def _times(path: str) -> _FileTimes:
    status = own = os.lstat(path)
    if stat.S_ISLNK(own.st_mode):
        status = os.stat(path)
    return _FileTimes(status.st_mtime_ns, max(own.st_ctime_ns, status.st_ctime_ns))


def _directory_changed(entry: os.DirEntry[str]) -> int:
    changed = entry.stat().st_ctime_ns
    return max(changed, _links_changed(entry.path)) if entry.is_symlink() else changed


def _links_changed(path: str) -> int:
    """Return the latest change time in the chain of links that begins with this link."""
    parent, name = os.path.split(path)
    newest, at, left = 0, os.path.realpath(parent), [name]
    while left:
        name = left.pop()
        if name in ("", ".", ".."):
            at = os.path.dirname(at) if name == ".." else at
            continue
        status = os.lstat(f"{at}/{name}")
        if not stat.S_ISLNK(status.st_mode):
            at = f"{at}/{name}"
            continue
        newest = max(newest, status.st_ctime_ns)
        target = os.readlink(f"{at}/{name}")
        at = "" if target.startswith("/") else at
        left += reversed(target.split("/"))
    return newest


def _measured_delivery(entry: os.DirEntry[str]) -> Delivery:
    """Return the delivery in a directory, by names, sizes and times of all its files."""
    changed = _directory_changed(entry)
    files = []
    for path, status, own in _files_under(entry.path, frozenset()):
        changed = max(changed, status.st_ctime_ns, own.st_ctime_ns)
        if not stat.S_ISDIR(status.st_mode):
            path = path[len(entry.path) + 1 :]
            files.append(ListedFile(path, status.st_size, status.st_mtime_ns))
    return Delivery(entry.name, files_digest(files), changed)


def _files_under(
    directory: str, above: frozenset[tuple[int, int]]
) -> Iterator[tuple[str, os.stat_result, os.stat_result]]:
    """Yield files and directories with their status and, for links, the link's; follow links."""
    status = os.stat(directory)
    inode = (status.st_dev, status.st_ino)
    if inode in above:
        raise OSError(0, "A link in it leads to a directory above")
    with os.scandir(directory) as entries:
        for entry in entries:
            own = entry.stat(follow_symlinks=False)
            try:
                status = entry.stat()
            except FileNotFoundError:
                if entry.is_symlink():
                    raise OSError(0, "A link in it leads nowhere") from None
                raise
            yield entry.path, status, own
            if stat.S_ISDIR(status.st_mode):
                yield from _files_under(entry.path, above | {inode})


def link_in(directory: Path) -> str | None:
    """Return the name of a link in a directory, or the directory's if it is a link; else None."""
    if directory.is_symlink():
        return directory.name
    for parent, directories, files in os.walk(directory):  # follows no link
        for name in (*directories, *files):
            path = Path(parent, name)
            if path.is_symlink():
                return str(path.relative_to(directory.parent))
    return None


def list_deliveries(
    directory: str | Path, marker: str | None, suffix: str = ""
) -> list[Delivery] | None:
    """List the source partitions in a landing directory, unordered; None without a directory.

    Names that begin with `.` or `_` are not partitions. On an object store all objects under the
    directory are listed, a thousand in each request.

    `marker` is the name of the file that is written last; None if sizes have to settle.

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
            state=NOTHING_REQUESTED,
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
        name = _entry_name(root, partition, suffix)
    except OSError as error:
        raise _no_directory(root, partition, redacted(error)) from None
    path = local_path(root)
    if path is None:
        return f"{without_query(root)}/{name}"
    link = None if follow_links else link_in(path / name)
    if link is not None:
        raise _links_refused(root, partition, link)
    return str(path / name)


def _entry_name(root: str | Path, partition: str, suffix: str) -> str:
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
        state=NOTHING_READ,
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
        state=NOTHING_READ,
        hint=hint,
    )


def delivery(
    directory: str | Path, partition: str, marker: str | None, suffix: str = ""
) -> Delivery | None:
    """Return the current state of a source partition in a landing directory; None without one.

    `marker` is the name of the file that is written last; None for the digest of all files.
    """
    try:
        return _delivery_named(directory, _entry_name(directory, partition, suffix), marker, suffix)
    except (OSError, ValueError) as error:
        raise SourceError(
            f"it cannot be listed: {redacted(error)}",
            table=without_query(directory),
            operation="looking for a delivery",
            state=NOTHING_READ,
        ) from None


def _delivery_named(
    directory: str | Path, name: str, marker: str | None, suffix: str
) -> Delivery | None:
    """Find the delivery in the directory or file with this name without looking at others."""
    path = local_path(directory)
    if path is None:
        if suffix:  # listed with the others, because a file's own time is cut to seconds
            files = _in_store(str(directory), is_recursive=False)
            listed = [file for file in files if file.path.startswith(name)]
            found = _landed_files(listed, marker, suffix)
            return next((each for each in found if each.name == name), None)
        uri, separator, query = str(directory).partition("?")
        files = _in_store(f"{uri.rstrip('/')}/{name}{separator}{query}")
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
        problem = problem_of_name(name, suffix)
        if problem is not None:
            yield Delivery(name, None, 0, problem=problem)
        elif marker is None:
            yield file_delivery(name, suffix, files_digest([file]), file.mtime_ns)
        else:
            marker_file = files.get(f"{name}{marker}")
            fingerprint = None if marker_file is None else str(marker_file.mtime_ns)
            found = file_delivery(name, suffix, fingerprint, (marker_file or file).mtime_ns)
            yield replace(found, files=files_digest([file]))


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
            yield Delivery(partition, files_digest(found), changed)
        else:
            written = next((file.mtime_ns for file in found if file.path == marker), None)
            fingerprint = None if written is None else str(written)
            yield Delivery(partition, fingerprint, written or changed, files=files_digest(found))


SECOND_IN_NS = 1_000_000_000
"""A second, in nanoseconds."""

_KEPT_NAMES = 1_000
_DIGEST_BYTES = 6


@dataclass(frozen=True)
class LandingCursor:
    """The state that a tick hands to the next one.

    Attributes:
        unsettled: Without a marker, partition to fingerprint of what may still grow.
        done: Digests of groups of deliveries that are all requested.
    """

    unsettled: Mapping[str, str] = field(default_factory=dict)
    done: Sequence[str] = ()

    @classmethod
    def of(cls, cursor: str | None) -> LandingCursor:
        """Return what a cursor holds; nothing if it was reset, edited or of an earlier release."""
        try:
            found = cls(**json.loads(cursor or "{}"))
        except (TypeError, ValueError):
            return cls()
        is_sound = isinstance(found.unsettled, dict) and isinstance(found.done, list)
        return found if is_sound and all(isinstance(each, str) for each in found.done) else cls()

    def to_cursor(self) -> str:
        """Return the state as a cursor."""
        return json.dumps(asdict(self))


@dataclass(frozen=True)
class LandingLook:
    """The result of one look at a landing directory.

    Attributes:
        complete: The deliveries that can be merged.
        incomplete: Partitions whose delivery is not complete.
        unsettled: Without a marker, the fingerprints of incomplete deliveries, which may still
            change.
        unknown: Directories that a fixed partitions definition does not know.
        problems: Why other directories cannot be requested, by directory.
    """

    complete: Sequence[Delivery]
    incomplete: Sequence[str]
    unsettled: Mapping[str, str]
    unknown: Sequence[str]
    problems: Mapping[str, str]


def look_at_landing(
    found: Iterable[Delivery],
    *,
    marker: str | None,
    known: frozenset[str] | None,
    unsettled: Mapping[str, str],
    horizon: int,
    now: int,
) -> LandingLook:
    """Return which deliveries are complete, incomplete or unknown.

    `marker` is the name of the marker file; None if sizes have to settle. `known` are the possible
    partitions; None if any partition is possible. Deliveries up to `horizon` have settled; it is a
    time in ns since 1970, as `now` is.
    """
    complete, incomplete, unknown = [], [], []
    problems: dict[str, str] = {}
    growing: dict[str, str] = {}
    for delivery in found:
        partition, fingerprint = delivery.partition, delivery.fingerprint
        if delivery.problem is not None:
            problems[delivery.name] = delivery.problem
        elif known is not None and partition not in known:
            unknown.append(delivery.name)
        elif fingerprint is None or _may_be_rewritten(delivery, now):
            incomplete.append(partition)
        elif (
            marker is None
            and delivery.changed_at > horizon
            and unsettled.get(partition) != fingerprint
        ):
            incomplete.append(partition)
            growing[partition] = fingerprint
        else:
            complete.append(delivery)
            if marker is None and delivery.changed_at > horizon:
                growing[partition] = fingerprint  # it stays settled, also after this look
    return LandingLook(
        complete=complete,
        incomplete=sorted(incomplete),
        # Deliveries beyond this number wait until the horizon has passed them.
        unsettled=dict(sorted(growing.items())[:_KEPT_NAMES]),
        unknown=sorted(unknown),
        problems=dict(sorted(problems.items())),
    )


class DeliveryGroup(NamedTuple):
    """Some deliveries, and the digest of all that they have."""

    digest: str
    deliveries: list[Delivery]


def groups(
    deliveries: Iterable[Delivery], described: Callable[[Delivery], str] = lambda _: ""
) -> Iterator[DeliveryGroup]:
    """Divide deliveries into groups of some hundreds, each with a digest of all that it has.

    A delivery that is added or changes gives another digest to its own group alone.
    """
    group: list[Delivery] = []
    text = hashlib.sha256()
    for delivery in deliveries:
        group.append(delivery)
        name = delivery.partition.encode()
        text.update(
            b"%b\t%b\t%b\n" % (name, str(delivery.identity).encode(), described(delivery).encode())
        )
        if hashlib.sha256(name).digest()[0] == 0:
            yield DeliveryGroup(text.hexdigest()[: 2 * _DIGEST_BYTES], group)
            group, text = [], hashlib.sha256()
    if group:
        yield DeliveryGroup(text.hexdigest()[: 2 * _DIGEST_BYTES], group)


def is_whole_second(moment: int) -> bool:
    """Return whether a time, in ns, is a whole second, as some storages keep them."""
    return moment % SECOND_IN_NS == 0


def _may_be_rewritten(delivery: Delivery, now: int) -> bool:
    """Return whether a delivery that replaces this one may get the same time from the storage."""
    return is_whole_second(delivery.changed_at) and 0 <= now - delivery.changed_at < SECOND_IN_NS
