"""Where data files lie: on a disk that is mounted here, or in a store that speaks S3's protocol.

Tasks on executors and the driver open, write and delete files by it. It needs only pyarrow.

A location is what Hadoop calls a path, not encoded: `file:/lake/a b`, `s3a://bucket/a b`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import unquote

if TYPE_CHECKING:
    import pyarrow.fs
    import pyarrow.parquet


_LOCAL = "file:"
_SMALL_FILE_BYTES = 16 << 20
# Bytes of a column that are read from a disk at once.
_BUFFER_BYTES = 1 << 20


class Storage(Protocol):
    """The interface by which files are opened, written and deleted."""

    def opened(
        self,
        location: str,
        *,
        dictionaries: Sequence[str] = (),
        metadata: pyarrow.parquet.FileMetaData | None = None,
    ) -> pyarrow.parquet.ParquetFile:
        """Open a file for reading; times stored as INT96 are read as microseconds.

        Args:
            dictionaries: Leaves whose values are read as dictionaries, by their paths.
            metadata: The file's footer, if it was read before.
        """

    def created(self, location: str) -> Any:
        """Return a context with what `ParquetWriter` writes a new file to."""

    def size(self, location: str) -> int:
        """Return the size of a file in bytes."""

    def delete(self, location: str) -> None:
        """Delete a file, if it is there."""

    def make_directory(self, location: str) -> None:
        """Make a directory, if it is not there."""


@dataclass(frozen=True)
class Disk:
    """A disk that is mounted here.

    Attributes:
        mode: The permissions of new files, as `chmod` takes them.
    """

    mode: int = 0o666

    def opened(
        self,
        location: str,
        *,
        dictionaries: Sequence[str] = (),
        metadata: pyarrow.parquet.FileMetaData | None = None,
    ) -> pyarrow.parquet.ParquetFile:
        """See `Storage`.

        The file is not mapped: a mapped file that disappears on a network's disk would end the
        process.
        """
        import pyarrow.parquet as pq

        return pq.ParquetFile(
            _path(location),
            metadata=metadata,
            read_dictionary=list(dictionaries) or None,
            # In pages, so that memory does not hold all of a row group as it is stored.
            pre_buffer=False,
            buffer_size=_BUFFER_BYTES,
            coerce_int96_timestamp_unit="us",
        )

    @contextmanager
    def created(self, location: str) -> Iterator[str]:
        """See `Storage`; the file must not be there."""
        path = _path(location)
        # Whatever this process's umask is; but some mounts refuse to change permissions.
        with open(path, "xb") as file, suppress(OSError):
            os.fchmod(file.fileno(), self.mode)
        yield path

    def size(self, location: str) -> int:
        """See `Storage`."""
        return os.path.getsize(_path(location))

    def delete(self, location: str) -> None:
        """See `Storage`."""
        with suppress(FileNotFoundError):
            os.remove(_path(location))

    def make_directory(self, location: str) -> None:
        """Make the directory, if it is not there, for those who may read and write such files."""
        directory = _path(location)
        try:
            os.mkdir(directory)
        except FileExistsError:
            return
        inherited = os.stat(directory).st_mode & 0o7000  # such as the group's bit
        with suppress(OSError):
            os.chmod(directory, inherited | self.mode | (self.mode & 0o444) >> 2)


@dataclass
class ObjectStore:
    """A store that speaks S3's protocol.

    Attributes:
        settings: What `pyarrow.fs.S3FileSystem` is made with, keys among them. They are sent to
            tasks, since clients of one release of pyarrow are none of another.
    """

    settings: Mapping[str, Any] = field(repr=False)
    _client: pyarrow.fs.S3FileSystem | None = field(
        default=None, init=False, repr=False, compare=False
    )

    def opened(
        self,
        location: str,
        *,
        dictionaries: Sequence[str] = (),
        metadata: pyarrow.parquet.FileMetaData | None = None,
    ) -> pyarrow.parquet.ParquetFile:
        """See `Storage`; of a small file, ranges that are near to each other come by one request.

        Arrow would hold all that it is going to read of a large one.
        """
        import pyarrow.parquet as pq

        file = self.files.open_input_file(_bucket_and_key(location))
        is_small = file.size() <= _SMALL_FILE_BYTES
        return pq.ParquetFile(
            file,
            metadata=metadata,
            read_dictionary=list(dictionaries) or None,
            pre_buffer=is_small,
            coerce_int96_timestamp_unit="us",
        )

    @contextmanager
    def created(self, location: str) -> Iterator[Any]:
        """See `Storage`; the object is there when the context is left, also by an error.

        Raises:
            OSError: The file could not be written as a whole.
        """
        with self.files.open_output_stream(_bucket_and_key(location)) as stream:
            yield stream
            written = stream.tell()
        if (size := self.size(location)) != written:
            raise OSError(f"{location} has {size} bytes, and {written} were written")

    def size(self, location: str) -> int:
        """See `Storage`."""
        size = self.files.get_file_info(_bucket_and_key(location)).size
        if size is None:
            raise FileNotFoundError(f"there is no file {location}")
        return int(size)

    def delete(self, location: str) -> None:
        """See `Storage`."""
        with suppress(FileNotFoundError):
            self.files.delete_file(_bucket_and_key(location))

    def make_directory(self, location: str) -> None:
        """See `Storage`: there are none to make."""

    @property
    def files(self) -> pyarrow.fs.S3FileSystem:
        """Arrow's client, which keeps its connections."""
        # No lock, as `cached_property` has, which could not be sent to tasks.
        if self._client is None:
            try:
                from pyarrow.fs import S3FileSystem

                self._client = S3FileSystem(**self.settings)
            except (ImportError, TypeError) as error:  # of an executor's older pyarrow
                raise OSError(f"pyarrow has no client for the store: {error}") from error
        return self._client

    def __getstate__(self) -> dict[str, Any]:
        """Return what is sent to tasks: no client."""
        return {"settings": self.settings}


@contextmanager
def deleted_on_error(storage: Storage, location: str) -> Iterator[None]:
    """Delete a file if the block that writes it fails; what cannot be deleted is left to VACUUM."""
    try:
        yield
    except BaseException:
        with suppress(Exception):
            storage.delete(location)
        raise


def location_of(name: str) -> str:
    """Return the location of a file given as `_metadata.file_path`, percent-encoded."""
    location = unquote(name)
    is_local = location.startswith(_LOCAL)
    return f"{_LOCAL}/{_path(location).lstrip('/')}" if is_local else location


def _path(location: str) -> str:
    return location.removeprefix(_LOCAL)


def _bucket_and_key(location: str) -> str:
    """Return bucket and key, as Arrow takes them."""
    return location.partition("://")[2]
