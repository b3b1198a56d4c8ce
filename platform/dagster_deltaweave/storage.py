"""Storage that sensors read without Spark: a local directory, or an object store by its URI."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote, unquote, urlsplit

from deltaweave._validation import refuse_credentials

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

_SCHEME = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]*:/")

_HADOOP_SCHEMES = {"s3a": "s3", "s3n": "s3"}
"""Hadoop's URI scheme of a store to Arrow's."""

_SECRET = re.compile(r"key|secret|token|passw|credential|signature", re.IGNORECASE)
_LEAST_SECRET = 8
_IN_URI = re.compile(r"(?<=://)[^\s/@]+:[^\s@]+(?=@)|(?<=\?)[^\s'\"]+")


def local_path(location: str | Path) -> Path | None:
    """Return the local path of a location, or None if it is on an object store.

    A location is a path, or a URI as Delta and Spark write it: `file:/lake/orders` or
    `s3a://bucket/orders`. Only URIs of the form `file:///…` are percent-decoded.

    Raises:
        StatementError: The URI holds credentials.
    """
    refuse_credentials(location)
    if isinstance(location, Path):
        return location
    if location.startswith("file://"):
        return Path(unquote(urlsplit(location).path))
    if location.startswith("file:/"):
        return Path(location.removeprefix("file:"))
    return None if _SCHEME.match(location) else Path(location)


class StoredPath(NamedTuple):
    """A path without a final slash, in one of Arrow's file systems."""

    store: FileSystem
    path: str


def file_system(location: str | Path) -> StoredPath:
    """Return Arrow's file system of a location, and the path in it without a final slash.

    Credentials and endpoints come from the environment, as the store's own tools read them
    (`AWS_ACCESS_KEY_ID`, `AWS_ENDPOINT_URL`, …). The URI's query may contain settings that are not
    secret, such as the region.

    Raises:
        StatementError: The URI holds credentials.
        ValueError: Arrow does not know the store.
    """
    # Imported here because loading the definitions needs no Arrow.
    from pyarrow import fs

    path = local_path(location)
    if path is not None:
        return StoredPath(fs.LocalFileSystem(), str(path.absolute()))
    scheme, rest = str(location).split(":", 1)
    uri, _, query = rest.partition("?")
    # A percent sign is quoted too, because Hadoop does not treat it as an escape.
    encoded = quote(uri, safe="/:@=+,") + (f"?{query}" if query else "")
    store, base = fs.FileSystem.from_uri(f"{_HADOOP_SCHEMES.get(scheme, scheme)}:{encoded}")
    return StoredPath(store, base.rstrip("/"))


def normalized_location(location: str | Path) -> str:
    """Normalize the name of a location: equal for all its spellings, with links followed."""
    path = local_path(location)
    if path is not None:
        return os.path.realpath(path)
    scheme, _, rest = without_query(location).partition(":")
    # Hadoop takes slashes in a row for one; two at the beginning are those before a host.
    return f"{_HADOOP_SCHEMES.get(scheme, scheme)}:{rest[:2]}{re.sub('/+', '/', rest[2:])}"


def without_query(location: str | Path) -> str:
    """Shorten a location for people: a store's URI without its query and final slash."""
    path = local_path(location)
    return str(location) if path is not None else str(location).partition("?")[0].rstrip("/")


def redacted(error: object) -> str:
    """Remove the secrets that a store may repeat in an error's message.

    This removes user information and queries of URIs, and the values of environment variables that
    are named like secrets.
    """
    text = _IN_URI.sub("…", str(error))
    for name, value in os.environ.items():
        if _SECRET.search(name) and len(value) >= _LEAST_SECRET:
            text = text.replace(value, "…")
    return text
