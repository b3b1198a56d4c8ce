"""Whether the rows of a query depend on the merge's target.

A merge whose commit lost may be run again only if its source then gives what it would give to a
statement that runs after the commits that won. The plan shows that, if it consists of what is known
(`known_nodes`) over leaves of these kinds:

- rows that the plan itself holds, or that were made in Python: they stay as they are;
- files and Delta tables elsewhere: they do not depend on the target;
- the target by its Delta log, and user functions, which may read files: evaluated again, they give
  what a later statement would read;
- a batch of a running stream, and a checkpoint that `checkpointed` made: their own plans are known.

Everything else may hold rows of the target's older version: an RDD, another checkpoint, the
target's files by path, a data source of others. When in doubt, the merge must not be run again.

A user's own checkpoint counts so also if it was filled before the merge began. It cannot read the
target again, but it shows nothing of its query: rows computed from the target (`v + 1`) would be
written over the commit that won. Delta's MERGE raises the conflict there, after which the user
computes them again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from urllib.parse import unquote, urlsplit

from deltaweave.delta import jvm as jvm_
from deltaweave.delta.commit import local_directory
from deltaweave.delta.jvm import JavaObject
from deltaweave.delta.log import FILE_RELATION
from deltaweave.delta.releases import reads_cached_rows
from deltaweave.delta.scan.checkpoint import origin_of
from deltaweave.delta.scan.directories import directory_of, show_files_of
from deltaweave.delta.scan.known_nodes import (
    CLAUSE_NODES,
    LEAVES,
    OPERATORS,
    QUERY_FUNCTIONS,
    STREAMS,
    USER_OPERATORS,
)
from deltaweave.delta.scan.local_rdds import holds_rows_of_python
from deltaweave.delta.statement import ResolvedMerge

_DELTA_FILES = "org.apache.spark.sql.delta.files."
_CHANGE_FEED = "org.apache.spark.sql.delta.commands.cdc.CDCReader$DeltaCDFRelation"
_KAFKA = "org.apache.spark.sql.kafka010.KafkaRelation"
_EXECUTION = "org.apache.spark.sql.execution."
_STREAM_ID = "sql.streaming.queryId"


class DependsOnTarget(IntEnum):
    """How the rows of a query depend on the target's versions."""

    NO = 0
    """They stay the same whatever is committed to the target."""
    NEWEST = 1
    """Evaluated again, they are those of the target's newest version."""
    UNKNOWN = 2
    """They may be those of an older version."""


@dataclass(frozen=True)
class Dependence:
    """How the rows of a query depend on the target, and what in its plan says so.

    Attributes:
        on_target: How they depend on it.
        because: The part of the plan, in a user's words.
    """

    on_target: DependsOnTarget
    because: str = ""

    @property
    def is_none(self) -> bool:
        """Whether the rows do not depend on the target."""
        return self.on_target is DependsOnTarget.NO

    @property
    def is_unknown(self) -> bool:
        """Whether the rows may be those of an older version of the target."""
        return self.on_target is DependsOnTarget.UNKNOWN

    def where_fixed(self, because: str) -> Dependence:
        """Return the dependence of rows that are not evaluated again."""
        return self if self.is_none else _unknown(f"{because} ({self.because})")


_NONE = Dependence(DependsOnTarget.NO)


def _newest(because: str) -> Dependence:
    return Dependence(DependsOnTarget.NEWEST, because)


def _unknown(because: str) -> Dependence:
    return Dependence(DependsOnTarget.UNKNOWN, because)


def source_dependence(merge: ResolvedMerge) -> Dependence:
    """Return how the source depends on the target."""
    found = _Search(merge).of_query(merge.source_plan)
    if not found.is_none and reads_cached_rows(merge.node, merge.source):
        return found.where_fixed("rows that were cached before")
    return found


def clauses_dependence(merge: ResolvedMerge) -> Dependence:
    """Return how the subqueries of clauses and of the ON condition depend on the target."""
    # The statement's node has no children for Spark: the source's subqueries are not among them.
    plans = list(jvm_.iterate(merge.node.subqueriesAll()))
    found = _Search(merge).of_plans(plans)
    if not found.is_none and any(
        reads_cached_rows(merge.node, jvm_.data_frame_of_plan(merge.spark, plan)) for plan in plans
    ):
        return found.where_fixed("rows that were cached before")
    return found


def unknown_in_clauses(merge: ResolvedMerge) -> list[str]:
    """Return the expressions of ON and clauses not known to be functions of their rows alone."""
    nodes = jvm_.nodes_within(merge.spark, merge.node.expressions())
    return _simple(jvm_.class_names(merge.spark, nodes) - CLAUSE_NODES)


def _simple(names: Iterable[str]) -> list[str]:
    return sorted(name.rpartition(".")[2] for name in names)


def _most(found: Iterable[Dependence]) -> Dependence:
    return max(found, key=lambda each: each.on_target, default=_NONE)


@dataclass(frozen=True)
class _Search:
    """Searches plans for what reads the target of a merge."""

    merge: ResolvedMerge

    def of_query(self, plan: JavaObject) -> Dependence:
        """Return the dependence of a plan with its subqueries."""
        return self.of_plans([plan, *jvm_.iterate(plan.subqueriesAll())])

    def of_plans(self, plans: Sequence[JavaObject]) -> Dependence:
        return _most(self._of_plan(plan) for plan in plans)

    def _of_plan(self, plan: JavaObject) -> Dependence:
        spark = self.merge.spark
        leaves = list(jvm_.iterate(plan.collectLeaves()))
        nodes = jvm_.nodes_within(spark, jvm_.seq(jvm_.jvm(spark), [plan]))
        classes = jvm_.class_names(spark, nodes)
        of_leaves = {leaf.getClass().getName() for leaf in leaves}
        unknown = classes - OPERATORS - USER_OPERATORS - of_leaves
        if unknown:
            return _unknown(f"the operator {_simple(unknown)[0]}")
        found = [self._of_leaf(leaf) for leaf in leaves]
        expressions = jvm_.class_names(spark, jvm_.expressions_within(spark, nodes))
        code = [*_simple(classes & USER_OPERATORS), *_simple(expressions - QUERY_FUNCTIONS)]
        if "PythonUDTF" in code:  # its `analyze` ran when the statement was analyzed
            found.append(_unknown("a Python table function"))
        elif code:
            found.append(_newest(f"{code[0]}, which may read anything"))
        return _most(found)

    def _of_leaf(self, leaf: JavaObject) -> Dependence:
        name, simple = leaf.getClass().getName(), leaf.getClass().getSimpleName()
        if name in LEAVES:
            return _NONE
        if name == f"{_EXECUTION}LogicalRDD":
            return self._of_rdd(leaf)
        if name == f"{_EXECUTION}columnar.InMemoryRelation":
            query = self.of_query(leaf.cacheBuilder().logicalPlan())
            return query.where_fixed("rows that were cached before")
        if name == f"{_EXECUTION}datasources.LogicalRelation":
            return self._of_relation(leaf.relation())
        if simple == "StreamingDataSourceV2ScanRelation":
            stream = leaf.stream().getClass()
            if stream.getName().startswith("org.apache.spark.sql."):
                known = stream.getSimpleName() in STREAMS
                return _NONE if known else _unknown(f"the stream {stream.getSimpleName()}")
        return _unknown(f"{simple}, a kind of source that is not known")

    def _of_relation(self, relation: JavaObject) -> Dependence:
        spark, name = self.merge.spark, relation.getClass().getName()
        if name == _CHANGE_FEED:
            log = relation.snapshotWithSchemaMode().snapshot().deltaLog()
            return _unknown("the target's change data feed") if self._is_target(log) else _NONE
        if name == _KAFKA:
            return _NONE
        if not jvm_.is_a(spark, relation, FILE_RELATION):
            return _unknown(f"{name}, a kind of source that is not known")
        index = relation.location()
        if not jvm_.is_a(spark, index, f"{_DELTA_FILES}TahoeFileIndex"):
            return self._of_files(relation, index)
        log = index.deltaLog()
        if not self._is_target(log):
            return _NONE
        by_log = jvm_.is_a(spark, index, f"{_DELTA_FILES}TahoeLogFileIndex")
        if by_log and log.isSameLogAs(self.merge.target_log):
            return _newest("the target itself")
        return _unknown("files or a copy of the target")

    def _is_target(self, log: JavaObject) -> bool:
        """Return whether a log is the target's, by whatever path."""
        target = self.merge.target_log
        return bool(log.isSameLogAs(target)) or log.tableId() == target.tableId()

    def _of_files(self, relation: JavaObject, index: JavaObject) -> Dependence:
        """Return the dependence of files that are read by their paths."""
        spark, kind = self.merge.spark, index.getClass().getSimpleName()
        if not relation.fileFormat().getClass().getName().startswith("org.apache.spark."):
            return _unknown("files of a format that is not known")
        if kind == "CatalogFileIndex" and index.table().partitionColumnNames().nonEmpty():
            return _unknown("a table whose partitions may lie anywhere")
        if kind not in ("InMemoryFileIndex", "CatalogFileIndex"):
            return _unknown(f"files that {kind} lists")
        to_uri = jvm_.function(spark, "org.apache.hadoop.fs.Path", "toUri")
        to_text = jvm_.function(spark, "java.lang.Object", "toString")
        uris = index.rootPaths().map(to_uri).map(to_text).distinct()
        roots = str(uris.mkString(" ")).split(" ")  # a URI has no blank
        if any(self._overlaps_target(root) for root in roots if root):
            return _unknown("the target's files by their path")
        if kind == "CatalogFileIndex":
            index = index.filterPartitions(jvm_.seq(jvm_.jvm(spark), []))
        to_path = jvm_.function(spark, "org.apache.hadoop.fs.FileStatus", "getPath")
        to_parent = jvm_.function(spark, "org.apache.hadoop.fs.Path", "getParent")
        parents = index.allFiles().map(to_path).map(to_parent).distinct()
        uris = parents.map(to_uri).map(to_text)
        if self._is_linked(str(uris.mkString(" ")).split(" ")):
            return _unknown("the target's files by a link")
        return _NONE

    def _is_linked(self, uris: Iterable[str]) -> bool:
        """Return whether a file of these directories lies in the target."""
        read = [unquote(urlsplit(uri).path) for uri in uris if uri.startswith("file:")]
        target = local_directory(str(self.merge.target_log.dataPath().toString()))
        if not read or target is None:
            return False
        try:
            return show_files_of(target, read)
        except OSError:
            return True  # some files are gone

    def _overlaps_target(self, uri: str) -> bool:
        one, other = directory_of(uri), self._target_directory
        return one.startswith(other) or other.startswith(one)

    @cached_property
    def _target_directory(self) -> str:
        return directory_of(str(self.merge.target_log.dataPath().toUri().toString()))

    def _of_rdd(self, leaf: JavaObject) -> Dependence:
        """Return the dependence of an RDD, which shows no plan; it is evaluated at most once."""
        spark, rdd = self.merge.spark, leaf.rdd()
        if holds_rows_of_python(spark, rdd, leaf.schema()):
            return _NONE
        origin = origin_of(spark, rdd)
        if origin is not None:
            return self.of_query(origin).where_fixed("a checkpoint")
        batch = self._running_batch()
        if batch is not None and batch.toRdd().id() == rdd.id():
            return self.of_query(batch.analyzed()).where_fixed("a stream's batch")
        return _unknown("an RDD or a checkpoint, which does not show what it was computed from")

    def _running_batch(self) -> JavaObject | None:
        """Return the execution of the batch that this thread processes, if it does."""
        spark = self.merge.spark
        query_id = spark.sparkContext.getLocalProperty(_STREAM_ID)
        if not query_id:
            return None
        streams = spark._jsparkSession.sharedState().activeStreamingQueries()
        running = streams.get(jvm_.jvm(spark).java.util.UUID.fromString(query_id))
        return None if running is None else running.lastExecution()
