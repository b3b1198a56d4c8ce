"""The stores that Python opens as Spark does: S3, by Hadoop's S3A with keys in its settings.

Only settings of which it is known what they mean for Python count. With any other, such as one of
encryption, of a proxy or of a role, files are left to Spark.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from deltaweave.delta import jvm as jvm_
from deltaweave.delta.jvm import JavaObject

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_S3A = "org.apache.hadoop.fs.s3a"
_PREFIX = "fs.s3a."
_DEFAULTS = "core-default.xml"
_KEYS_ELSEWHERE = "hadoop.security.credential.provider.path"
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
# Those of how S3A works, not of what it sends. Those of a bucket have become those of the system.
_OF_S3A_ALONE = (
    "attempts.maximum",
    "block.size",
    "bucket.",
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
    "input.",
    "max.total.tasks",
    "multipart.",
    "paging.maximum",
    "performance.",
    "prefetch.",
    "readahead.range",
    "retry.",
    "socket.",
    "threads.",
    "vectored.",
)
_OF_AMAZON = (".amazonaws.com", ".amazonaws.com.cn")
_CENTRAL = "s3.amazonaws.com"
# Stores of one region take any name for it.
_ANY_REGION = "us-east-1"
_SECONDS_TO_CONNECT, _SECONDS_TO_WAIT = 10, 120


def settings_for_arrow(
    spark: SparkSession, directory: JavaObject, configuration: JavaObject
) -> dict[str, Any] | str:
    """What `pyarrow.fs.S3FileSystem` is made with to open what lies in a directory.

    Args:
        spark: The session.
        directory: Hadoop's path.
        configuration: Hadoop's settings, by which its file system is opened.

    Returns:
        The arguments, with keys in them; or why only Spark opens it.
    """
    system = directory.getFileSystem(configuration)
    if str(system.getClass().getName()) != f"{_S3A}.S3AFileSystem":
        return "the table is not on a file system that Python opens"
    # The file system keeps the settings that it was opened with, those of the bucket among them.
    return arguments_by(spark, system.getConf())


def arguments_by(spark: SparkSession, opened_with: JavaObject) -> dict[str, Any] | str:
    """The same, by the settings that S3A was opened with."""
    if opened_with.get(_KEYS_ELSEWHERE):
        return f"{_KEYS_ELSEWHERE} is set"
    given, usual = _with_prefix(spark, opened_with), _defaults(spark)
    for name in sorted(given.keys() | usual.keys()):
        is_known = name in _UNDERSTOOD or name.startswith(_OF_S3A_ALONE)
        if not is_known and given.get(name, "") != usual.get(name, ""):
            return f"{_PREFIX}{name} is set"
    return _arguments(given, usual)


def _arguments(given: Mapping[str, str], usual: Mapping[str, str]) -> dict[str, Any] | str:
    keys = _keys(given, usual)
    if keys is None:
        return f"keys do not come from {_PREFIX}access.key and {_PREFIX}secret.key"
    endpoint, region = given.get("endpoint", ""), given.get("endpoint.region", "")
    scheme, _, host = endpoint.rpartition("://")
    host = host.rstrip("/")
    by_path = given.get("path.style.access", "").lower() == "true"
    encrypted = given.get("connection.ssl.enabled", "true").lower() == "true"
    arguments: dict[str, Any] = {
        **keys,
        "allow_delayed_open": True,  # small files by one request
        "scheme": scheme.lower() or ("https" if encrypted else "http"),
        "connect_timeout": _SECONDS_TO_CONNECT,
        "request_timeout": _SECONDS_TO_WAIT,
    }
    if host in ("", _CENTRAL) or host.endswith(_OF_AMAZON):
        if not region:
            return f"{_PREFIX}endpoint.region is not set"
        if by_path:
            return f"{_PREFIX}path.style.access is true"
    if host not in ("", _CENTRAL):
        arguments["endpoint_override"] = host
        arguments["force_virtual_addressing"] = not by_path
    return {**arguments, "region": region or _ANY_REGION}


def _keys(given: Mapping[str, str], usual: Mapping[str, str]) -> dict[str, str] | None:
    """The keys that the first provider of S3A finds; None if it is one that looks elsewhere."""
    providers = given.get(_PROVIDERS) or usual.get(_PROVIDERS, "")
    names = ("access.key", "secret.key", "session.token")
    access, secret, session = (given.get(name, "").strip() for name in names)
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
    """What S3A's settings are where nobody sets them."""

    def read() -> JavaObject:
        bare = jvm_.jvm(spark).org.apache.hadoop.conf.Configuration(False)
        bare.addResource(_DEFAULTS)
        return bare

    return _with_prefix(spark, jvm_.made_once(spark, "Hadoop's default settings", read))


def _with_prefix(spark: SparkSession, configuration: JavaObject) -> dict[str, str]:
    """The settings of S3A, by their names without the prefix."""
    found = configuration.getPropsWithPrefix(_PREFIX)
    json_ = jvm_.singleton(jvm_.jvm(spark).org.apache.spark.sql.delta.util, "JsonUtils")
    settings: dict[str, str] = json.loads(str(json_.mapper().writeValueAsString(found)))
    return settings
