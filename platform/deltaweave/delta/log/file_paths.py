"""Where a file of the log is: paths are decoded and made absolute, so that they can be compared."""

from __future__ import annotations

import re
from urllib.parse import unquote

from pyspark.sql import Column
from pyspark.sql import functions as F

from deltaweave.delta.jvm import DeltaLog, JavaObject

_SCHEME = "^([A-Za-z][A-Za-z0-9+.-]*):/"


def commit_name(version: int) -> str:
    """Return the name of the log's file with a version's commit."""
    return f"{version:020}.json"


def commit_file(log: DeltaLog, version: int) -> JavaObject:
    """Return Hadoop's path of the log's file with a version's commit."""
    return log.logPath().suffix(f"/{commit_name(version)}")


def decoded_location(path: str) -> str:
    """Decode an absolute path, with `scheme:///x` written as `scheme:/x`.

    Writers encode differently ("ü" as it is, or as %C3%BC), so names are compared decoded.
    """
    return re.sub(_SCHEME + "{3,}", r"\1:/", unquote(path))


def has_plain_spelling(location: str) -> bool:
    """Return whether `_metadata.file_path` spells a decoded location as it is, and only so.

    Others are compared decoded, or not at all: Spark encodes a blank, and leaves "ü" and "(".
    """
    return re.fullmatch(r"[A-Za-z0-9_.:/=-]+", location) is not None


def absolute_location(path: str, path_of_table: str) -> str:
    """Return the `decoded_location` of a file by its path in the log."""
    path = decoded_location(path)
    is_absolute = path.startswith("/") or re.match(_SCHEME, path)
    return path if is_absolute else f"{path_of_table.rstrip('/')}/{path}"


def decoded(path: Column) -> Column:
    """Build `decoded_location` as a Column."""
    # url_decode would also turn "+" into a space; in paths it is a plus.
    path = F.url_decode(F.replace(path, F.lit("+"), F.lit("%2B")))
    return F.regexp_replace(path, _SCHEME + "{3,}", "$1:/")


def location_in(path_of_table: str) -> Column:
    """Build `absolute_location` of the column `path`, as a Column."""
    path = decoded(F.col("path"))
    is_absolute = path.rlike(_SCHEME) | path.startswith("/")
    return F.when(is_absolute, path).otherwise(
        F.concat(F.lit(path_of_table.rstrip("/") + "/"), path)
    )
