"""The stores that Python opens as Spark does: S3, by Hadoop's S3A with keys in its settings.

Only settings whose meaning for Python is known count. With any other, such as one of
encryption, of a proxy or of a role, files are left to Spark.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import get_ident
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from py4j.protocol import Py4JJavaError

from deltaweave._validation import YES, Verdict, no
from deltaweave.delta.jvm import JavaObject, Jvm
from deltaweave.delta.log import TableSnapshot, commit_file

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

# The stores that Arrow and S3A were seen to open alike.
_SAME_STORES: WeakKeyDictionary[SparkContext, set[tuple[Any, ...]]] = WeakKeyDictionary()

_S3A = "org.apache.hadoop.fs.s3a"
_PREFIX = "fs.s3a."
_DEFAULTS = "core-default.xml"
_KEYS_ELSEWHERE = "hadoop.security.credential.provider.path"
_KEYS_IN_CLEAR = "hadoop.security.credential.clear-text-fallback"
_PROVIDERS = "aws.credentials.provider"
_SIMPLE, _TEMPORARY = "SimpleAWSCredentialsProvider", "TemporaryAWSCredentialsProvider"
# Settings of S3A by which this module chooses those of Arrow.
_UNDERSTOOD = {
    "access.key",
    "connection.ssl.enabled",
    "endpoint",
    "endpoint.region",
    "impl",
    "path.style.access",
    "secret.key",
    "session.token",
    _PROVIDERS,
}
# Those of how S3A works, not of what it sends, as these names begin.
_OF_S3A_ALONE = (
    "attempts.maximum",
    "block.size",
    "buffer.dir",
    "committer.",
    "connection.acquisition.timeout",
    "connection.establish.timeout",
    "connection.idle.time",
    "connection.keepalive",
    "connection.maximum",
    "connection.request.timeout",
    "connection.timeout",
    "connection.ttl",
    "downgrade.syncable.exceptions",
    "executor.capacity",
    "experimental.input.",
    "fast.upload.",
    "max.total.tasks",
    "multipart.purge",  # and its age
    "multipart.size",
    "multipart.threshold",
    "paging.maximum",
    "performance.",
    "prefetch.",
    "readahead.range",
    "retry.",
    "socket.",
    "threads.",
    "vectored.",
)
_CENTRAL = "s3.amazonaws.com"
# What S3A names for a store whose host names none.
_REGION_OF_S3A = "us-east-2"
_SECONDS_TO_CONNECT, _SECONDS_TO_WAIT = 10, 30


@dataclass(frozen=True)
class StoreSettings:
    """The settings by which Arrow opens the files of a table.

    Attributes:
        verdict: Whether it opens them as Spark does.
        arguments: The arguments of `pyarrow.fs.S3FileSystem`, with keys in them, if it does.
    """

    verdict: Verdict
    arguments: Mapping[str, Any] = field(default_factory=dict)


def _left_to_spark(reason: str) -> StoreSettings:
    return StoreSettings(no(reason))


def settings_for_arrow(table: TableSnapshot) -> dict[str, Any] | str:
    """Return the arguments of `store_settings`, or why only Spark opens the files."""
    settings = store_settings(table)
    return dict(settings.arguments) if settings.verdict.ok else settings.verdict.reason


def store_settings(table: TableSnapshot) -> StoreSettings:
    """Return how Arrow opens a table's files in an object store.

    Arrow must see the version's commit as S3A does. It would not where the environment of the JVM
    points S3A to another store, where the bucket is in another region, and where nothing answers.
    """
    system = table.log.dataPath().getFileSystem(table.log.newDeltaHadoopConf())
    if str(system.getClass().getName()) != f"{_S3A}.S3AFileSystem":
        return _left_to_spark("the table is not on a file system that Python opens")
    # The file system keeps the settings that it was opened with, those of the bucket among them.
    settings = settings_by(table.spark, system.getConf())
    if not settings.verdict.ok or _is_same_store(table, system, settings.arguments):
        return settings
    return _left_to_spark("Arrow's client does not see the table's log as S3A does")


def _is_same_store(table: TableSnapshot, system: JavaObject, arguments: Mapping[str, Any]) -> bool:
    """Return whether both see one object as the version's commit, or once saw one of the bucket."""
    import pyarrow as pa
    from pyarrow.fs import S3FileSystem

    commit = commit_file(table.log, table.version)
    _, _, key = str(commit.toString()).partition("://")
    store = (key.partition("/")[0], *sorted(arguments.items()))
    same = _SAME_STORES.setdefault(table.spark.sparkContext, set())
    if store in same:
        return True
    try:
        status, seen = system.getFileStatus(commit), S3FileSystem(**arguments).get_file_info(key)
    except (Py4JJavaError, OSError, pa.ArrowException):
        return False
    at_second = int(status.getModificationTime()) // 1_000
    if seen.mtime is None or int(seen.mtime.timestamp()) != at_second:
        return False
    if seen.size != int(status.getLen()):
        return False
    same.add(store)
    return True


def settings_by(spark: SparkSession, opened_with: JavaObject) -> StoreSettings:
    """Return how Arrow opens what S3A opened with these settings."""
    if opened_with.get(_KEYS_ELSEWHERE):
        return _left_to_spark(f"{_KEYS_ELSEWHERE} is set")
    if (opened_with.get(_KEYS_IN_CLEAR) or "true").strip().lower() != "true":
        return _left_to_spark(f"{_KEYS_IN_CLEAR} is false")
    given, usual = _with_prefix(spark, opened_with), _defaults(spark)
    for name in sorted(given.keys() | usual.keys()):
        is_known = name in _UNDERSTOOD or name.startswith(_OF_S3A_ALONE)
        if not is_known and given.get(name, "") != usual.get(name, ""):
            return _left_to_spark(f"{_PREFIX}{name} is set")
    settings = _settings(given, usual)
    return _accepted_by_arrow(settings) if settings.verdict.ok else settings


def _accepted_by_arrow(settings: StoreSettings) -> StoreSettings:
    """Return the settings, or the reason why this installation's pyarrow refuses them."""
    import pyarrow as pa

    try:
        from pyarrow.fs import S3FileSystem

        S3FileSystem(**settings.arguments)
    except (ImportError, TypeError, ValueError, OSError, pa.ArrowException) as error:
        return _left_to_spark(
            f"pyarrow {pa.__version__} has no client for it: {type(error).__name__}"
        )
    return settings


def _settings(given: Mapping[str, str], usual: Mapping[str, str]) -> StoreSettings:
    keys = _keys(given, usual)
    if keys is None:
        return _left_to_spark(f"keys do not come from {_PREFIX}access.key and {_PREFIX}secret.key")
    endpoint, region = given.get("endpoint", ""), given.get("endpoint.region", "")
    scheme, _, host = endpoint.rpartition("://")
    host = host.rstrip("/")
    by_path = given.get("path.style.access", "").lower() == "true"
    arguments: dict[str, Any] = {
        **keys,
        "allow_delayed_open": True,  # small files by one request
        "background_writes": False,  # else a file may wait in memory until it is sent
        "connect_timeout": _SECONDS_TO_CONNECT,
        "request_timeout": _SECONDS_TO_WAIT,
    }
    if not region and not _is_without_region(host):
        return _left_to_spark(f"{_PREFIX}endpoint.region is not set")
    if host in ("", _CENTRAL):  # then S3A's client is always encrypted
        if by_path:
            return _left_to_spark(f"{_PREFIX}path.style.access is true")
        return StoreSettings(YES, {**arguments, "scheme": "https", "region": region})
    encrypted = given.get("connection.ssl.enabled", "true").lower() == "true"
    own = {
        "endpoint_override": host,
        "force_virtual_addressing": not by_path,
        "scheme": scheme.lower() or ("https" if encrypted else "http"),
        "region": region or _REGION_OF_S3A,
    }
    return StoreSettings(YES, {**arguments, **own})


def _is_without_region(host: str) -> bool:
    """Return whether S3A finds no region in the name of a host, as in those of many providers."""
    name = host.rpartition(":")[0] or host
    return bool(name) and ("." not in name or name.replace(".", "").isdigit())


def _keys(given: Mapping[str, str], usual: Mapping[str, str]) -> dict[str, str] | None:
    """Return the keys that S3A's first provider finds; None if that one looks elsewhere."""
    providers = given.get(_PROVIDERS) or usual.get(_PROVIDERS, "")
    names = ("access.key", "secret.key", "session.token")
    access, secret, session = (given.get(name, "") for name in names)
    keys = {"access_key": access, "secret_key": secret}
    for provider in providers.replace(",", " ").split():
        if provider == f"{_S3A}.{_TEMPORARY}":
            if access and secret and session:
                return {**keys, "session_token": session}
        elif provider == f"{_S3A}.{_SIMPLE}":
            if access and secret:
                return keys
        else:
            return None
    return None


def _defaults(spark: SparkSession) -> Mapping[str, str]:
    """Return S3A's default settings."""

    def read() -> JavaObject:
        bare = Jvm.of(spark).org.apache.hadoop.conf.Configuration(False)
        bare.addResource(_DEFAULTS)
        return bare

    return _with_prefix(spark, Jvm.of(spark).made_once("Hadoop's default settings", read))


def _with_prefix(spark: SparkSession, configuration: JavaObject) -> dict[str, str]:
    """Return the settings of S3A by name without the prefix; settings of buckets are left out."""
    json_ = Jvm.singleton(Jvm.of(spark).delta.util, "JsonUtils")
    found = configuration.getPropsWithPrefix(_PREFIX)
    with _unlogged():
        settings: dict[str, str] = json.loads(str(json_.mapper().writeValueAsString(found)))
    return {
        name: value.strip() for name, value in settings.items() if not name.startswith("bucket.")
    }


@contextmanager
def _unlogged() -> Iterator[None]:
    """Keep what the JVM answers to this thread out of py4j's log, which shows it at DEBUG."""
    thread = get_ident()

    def is_of_another(record: logging.LogRecord) -> bool:
        return record.thread != thread

    loggers = [logging.getLogger(name) for name in ("py4j.clientserver", "py4j.java_gateway")]
    for logger in loggers:
        logger.addFilter(is_of_another)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(is_of_another)
