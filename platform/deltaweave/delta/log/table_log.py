"""Delta's log of a table, by its path or name, with its versions and what each commit did.

A name means the same catalog as in SQL.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from deltaweave import errors
from deltaweave.delta.jvm import DeltaLog, JavaObject, Jvm, active, translated
from deltaweave.delta.log.actions import commit_file
from deltaweave.delta.log.snapshot import TableSnapshot, data_path
from deltaweave.delta.releases import snapshot_at

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# The lines of these actions, as Delta's writers and others write them.
_OF_ITSELF = r'^\s*\{\s*"(commitInfo|txn|metaData)"'
_OF_FILES = r'^\s*\{\s*"(add|remove)"'

_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_ROOT = re.compile(r"^([A-Za-z][\w+.-]*):/+")


def log_by_name(spark: SparkSession, parts: Sequence[str]) -> JavaObject:
    """Open Delta's log of the table with this name, in whatever catalog it is."""
    jvm = Jvm.of(spark)
    _refuse_temporary_view(spark, parts)
    catalog, identifier = _resolved(spark, parts)
    if _is_of_session(spark, catalog):
        found = spark._jsparkSession.sessionState().catalog()
        table = found.getTableMetadata(_in_session_catalog(spark, parts, identifier))
        return jvm.delta.DeltaLog.forTable(spark._jsparkSession, table)
    table = Jvm.singleton(jvm.sql.connector.catalog, "CatalogV2Util").getTable(
        catalog, identifier, jvm.option(None), jvm.option(None)
    )
    if table.getClass().getSimpleName() != "DeltaTableV2":
        raise errors.NotADeltaTableError(
            f"it is not a Delta table: its catalog gives a {table.getClass().getName()}.",
            table=".".join(parts),
            operation="opening",
            state=errors.NOTHING_DONE,
            hint="Name a Delta table.",
        )
    return table.deltaLog()


def _refuse_temporary_view(spark: SparkSession, parts: Sequence[str]) -> None:
    """Raise where SQL would take a view of the session for the table: it may be of another one."""
    found = spark._jsparkSession.sessionState().catalog()
    if len(parts) == 1 and found.getTempView(parts[0]).isDefined():
        raise errors.StatementError(
            "a temporary view of the session has this name, and in SQL the name means the view.",
            table=parts[0],
            operation="opening",
            hint="Name the table with its database, or drop the view.",
        )


def absolute_path(spark: SparkSession, path: str) -> str:
    """Resolve a relative path at the session's directory, as Spark's readers do.

    Delta's statements take absolute paths alone. URIs stay as they are.
    """
    if path.startswith("/") or _URI.match(path):
        return path
    with translated(path, operation="opening"):
        given = Jvm.of(spark).org.apache.hadoop.fs.Path(path)
        files = given.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())
        return re.sub(r"^file:(?=/)", "", str(files.makeQualified(given).toString()))


def location_of_new_table(spark: SparkSession, parts: Sequence[str]) -> JavaObject:
    """Return the location of a table that is created with this name, as Hadoop's Path.

    Raises:
        StatementError: The name means another catalog than Spark's own, or that is not the current
            one. Delta registers the tables that it creates in Spark's own catalog, where the name
            means another table, and then looks for them in the current one.
    """
    catalog, identifier = _resolved(spark, parts)
    if not _is_of_session(spark, catalog):
        raise errors.StatementError(
            "deltaweave creates no tables in other catalogs than spark_catalog: Delta registers "
            "new tables there, where the name means another table.",
            table=".".join(parts),
            operation="creation",
            hint="Create the table with the catalog's own tools; it can then be used by its name.",
        )
    # Delta gets the name without its catalog, and looks for it as SQL does.
    current, _ = _resolved(spark, parts[-2:])
    if not _is_of_session(spark, current):
        raise errors.StatementError(
            "deltaweave creates tables only where their name without a catalog means "
            "spark_catalog: Delta would create the table there and then look for it elsewhere.",
            table=".".join(parts),
            operation="creation",
            state=errors.NOTHING_DONE,
            hint="Run SET CATALOG spark_catalog first, or name the schema other than a catalog.",
        )
    found = spark._jsparkSession.sessionState().catalog()
    location = found.defaultTablePath(_in_session_catalog(spark, parts, identifier))
    # Not the text of the URI, which has escapes.
    return Jvm.of(spark).org.apache.hadoop.fs.Path(location)


def _resolved(spark: SparkSession, parts: Sequence[str]) -> tuple[JavaObject, JavaObject]:
    """Return the catalog of a name, and its identifier there (namespace and name)."""
    names = Jvm.of(spark).seq(parts)
    analyzer = spark._jsparkSession.sessionState().analyzer()
    with active(spark):  # catalogs are configured in the settings of the active session
        found = analyzer.CatalogAndIdentifier().unapply(names).get()
    return found._1(), found._2()


def _is_of_session(spark: SparkSession, catalog: JavaObject) -> bool:
    """Return whether a catalog is Spark's own.

    Its name does not show it: others of Delta's class have the name of what they delegate to.
    """
    manager = spark._jsparkSession.sessionState().catalogManager()
    with active(spark):
        return bool(catalog.equals(manager.v2SessionCatalog()))


def _in_session_catalog(
    spark: SparkSession, parts: Sequence[str], identifier: JavaObject
) -> JavaObject:
    """Build the TableIdentifier of a name in Spark's own catalog with a namespace of one part."""
    jvm, namespace = Jvm.of(spark), list(identifier.namespace())
    if len(namespace) > 1:
        raise errors.StatementError(
            f"there is no catalog {namespace[0]!r}.",
            table=".".join(parts),
            operation="opening",
            state=errors.NOTHING_DONE,
            hint="Configure spark.sql.catalog for it, or name a table as database.table.",
        )
    database = jvm.option(namespace[0] if namespace else None)
    return jvm.catalyst.TableIdentifier(identifier.name(), database, jvm.option(None))


def version_at(spark: SparkSession, name: str, time: datetime) -> int | None:
    """Return the newest version that was committed at or before a time, or None."""
    history = spark.sql(f"DESCRIBE HISTORY {name}")
    row = history.where(F.col("timestamp") <= F.lit(time)).agg(F.max("version")).first()
    assert row is not None
    return None if row[0] is None else int(row[0])


@dataclass(frozen=True)
class TableLog:
    """Delta's log of a table, which need not exist.

    Attributes:
        spark: The session that opened it.
    """

    spark: SparkSession
    log: DeltaLog

    @classmethod
    def of(cls, spark: SparkSession, parts: Sequence[str]) -> TableLog:
        """Open the log of the table that the name parts mean; `["delta", path]` means a path."""
        with translated(".".join(parts), operation="opening"):
            if len(parts) == 2 and parts[0].lower() == "delta":
                logs = Jvm.of(spark).delta.DeltaLog
                return cls(spark, logs.forTable(spark._jsparkSession, parts[1]))
            return cls(spark, log_by_name(spark, parts))

    @property
    def exists(self) -> bool:
        """Whether there is a Delta table, by the log as it is now."""
        return self.latest().version >= 0

    @property
    def data_path(self) -> str:
        """Where the table's data is, e.g. `file:/lake/orders`, not percent-encoded."""
        return data_path(self.log)

    def latest(self) -> TableSnapshot:
        """Read the newest version; its number is -1 if there is no table.

        Delta's own `snapshot` and `tableExists` are what this JVM saw last.
        """
        empty = Jvm.of(self.spark).option(None)
        return TableSnapshot(self.spark, self.log, self.log.update(False, empty, empty))

    def at_version(self, version: int, newest: TableSnapshot | None = None) -> TableSnapshot:
        """Read a version of an existing table, whose newest version may be known already.

        Raises:
            TableNotFoundError: The log no longer holds, or never held, that version.
        """
        newest = newest or self.latest()
        if newest.version == version:
            return newest
        if version > newest.version:
            raise errors.TableNotFoundError(
                f"it has no version {version}; the newest is {newest.version}.",
                table=self.data_path,
                operation="reading a version",
            )
        with translated(self.data_path, operation="reading a version", version=version):
            return TableSnapshot(self.spark, self.log, snapshot_at(self.spark, self.log, version))


@dataclass(frozen=True)
class Commit:
    """A commit of a table.

    Attributes:
        version: The version that it made.
        at_ms: When it was made, by its writer's clock, in ms since 1970.
        operation: Delta's name of what it did; empty if its writer gave none.
        applied: The application ids that it holds, with their versions.
        created_at_ms: When the table of its metadata was created, in ms since 1970; None if it has
            no metadata, or that lacks it. A clone has the time of its source.
        read: The version that its writer read; None if it is not recorded.
    """

    version: int
    at_ms: int
    operation: str
    parameters: Mapping[str, Any]
    applied: Mapping[str, int]
    created_at_ms: int | None = None
    read: int | None = None


@dataclass(frozen=True)
class FileChanges:
    """The files that a commit added and removed; a file with other deleted rows is another one."""

    added: frozenset[str]
    removed: frozenset[str]


def commit_of(table: TableSnapshot, version: int) -> Commit | None:
    """Read the commit of a version from a table's log; None if the log no longer holds it.

    Raises:
        DeltaweaveError: The log cannot be read.
    """
    actions = _actions(table, version, _OF_ITSELF)
    return None if actions is None else commit_from(version, actions)


def file_changes_of(table: TableSnapshot, version: int) -> FileChanges | None:
    """Read the files that a commit changed; None if the log no longer holds it.

    Raises:
        DeltaweaveError: The log cannot be read.
    """
    actions = _actions(table, version, _OF_FILES)
    return None if actions is None else file_changes_from(actions)


def _actions(table: TableSnapshot, version: int, kinds: str) -> list[dict[str, Any]] | None:
    log, jvm = table.log, Jvm.of(table.spark)
    with translated(table.data_path, operation="reading its log", version=version):
        path, settings = commit_file(log, version), log.newDeltaHadoopConf()
        if not path.getFileSystem(settings).exists(path):
            return None
        lines = jvm.java_list(log.store().read(path, settings))
        wanted = jvm.java.util.regex.Pattern.compile(kinds).asPredicate()
        joined = jvm.java.util.stream.Collectors.joining("\n")
        text = str(lines.stream().filter(wanted).collect(joined))
    return [json.loads(line) for line in text.split("\n") if line]


def commit_from(version: int, actions: Iterable[Mapping[str, Any]]) -> Commit:
    """Build the commit of a version from its actions."""
    actions = list(actions)
    infos = [action["commitInfo"] for action in actions if "commitInfo" in action]
    info = infos[0] if infos else {}
    pairs = [action["txn"] for action in actions if "txn" in action]
    metadata = [action["metaData"] for action in actions if "metaData" in action]
    return Commit(
        version,
        int(info.get("inCommitTimestamp") or info.get("timestamp") or 0),
        info.get("operation") or "",
        info.get("operationParameters") or {},
        {each["appId"]: int(each["version"]) for each in pairs},
        metadata[0].get("createdTime") if metadata else None,
        info.get("readVersion"),
    )


def file_changes_from(actions: Iterable[Mapping[str, Any]]) -> FileChanges:
    """Collect the files that a commit changed from its actions.

    A commit that only adds files without a change of data describes files that are there: their
    statistics, or their rows' ids.
    """
    changed: dict[str, set[str]] = {"add": set(), "remove": set()}
    changes_data = False
    for action in actions:
        for kind, files in changed.items():
            if kind in action:
                files.add(_file(action[kind]))
                changes_data |= action[kind].get("dataChange", True)
    if not changed["remove"] and not changes_data:
        return FileChanges(frozenset(), frozenset())
    return FileChanges(frozenset(changed["add"]), frozenset(changed["remove"]))


def _file(action: Mapping[str, Any]) -> str:
    """Return the path of a file and its deletion vector; protocol, "Deletion Vectors"."""
    path = _ROOT.sub(r"\1:/", action["path"])
    vector = action.get("deletionVector")
    if not vector:
        return path
    return f"{path} {vector['storageType']}{vector['pathOrInlineDv']}@{vector.get('offset')}"
