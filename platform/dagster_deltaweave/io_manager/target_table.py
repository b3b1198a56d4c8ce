"""The table of an output before it is written: its location, its columns, and its version.

A write starts at the version from before the asset's function began, so that Delta refuses the
commit if another writer changed the rows that it replaces (`docs/internals/outputs.md`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dagster import DagsterEventType, DagsterInstance, DagsterRun, OutputContext
from pyspark.sql.types import ArrayType, MapType, NullType, StructField, StructType

import deltaweave
from dagster_deltaweave.dagster_private import ASSET_RESUME_RETRY_TAG
from dagster_deltaweave.io_manager.step_attempts import other_outputs_of_step
from dagster_deltaweave.logs import version_with_rows_of
from dagster_deltaweave.partitions import planned_assets
from dagster_deltaweave.storage import local_path
from dagster_deltaweave.tables import (
    TYPE_WIDENING,
    TableDeclaration,
    TableLocator,
    TableNames,
    check_locations,
    check_owner,
    check_parents,
    full_names,
    path_under,
    with_owner,
)
from deltaweave import Table
from deltaweave.changes.table_columns import declared_columns
from deltaweave.delta.commit import alone_on_local_disk, is_unwritten
from deltaweave.delta.jvm import translated
from deltaweave.errors import NOTHING_COMMITTED, NOTHING_WRITTEN, DeltaweaveError, StatementError
from deltaweave.identifiers import string_token, table_name

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import DataType


_DENIED = ("AccessDenied", "AccessControl", "Forbidden", "Permission denied")


@dataclass(frozen=True)
class Start:
    """Where a write's transaction starts.

    Attributes:
        version: The version; None for the newest version if the rows were not computed from the
            table.
        reads_all: Whether the rows may have been computed from all rows of that version, or only
            from those that they replace.
    """

    version: int | None
    reads_all: bool


@dataclass(frozen=True)
class TargetTable:
    """The table of an output: open it, refuse or prepare it, then write where it starts.

    Attributes:
        table: The table, which may be missing.
        declaration: How the table is written; in a schema, it also names the asset that owns it.
    """

    context: OutputContext
    table: Table
    declaration: TableDeclaration

    @classmethod
    def open(
        cls, context: OutputContext, locator: TableLocator, declaration: TableDeclaration
    ) -> TargetTable:
        """Find the table of an output, and refuse a location that holds another table's data."""
        table = locator.table(context.asset_key, declaration)
        spark = table.spark
        is_made = table.exists()
        location = table.location() if is_made else table.planned_location()
        check_locations(
            context,
            declaration,
            TableNames(locator.path_or_name, full_names(spark)),
            location,
            is_made=is_made,
            is_table=lambda path: _is_table(spark, path),
        )
        if not is_made:
            check_parents(table.path_or_name, location, lambda path: _is_table(spark, path))
        if declaration.table is not None or locator.is_under_root(declaration):
            return cls(context, table, declaration)
        declaration = with_owner(declaration, context.asset_key)
        if is_made:
            check_owner(table, declaration)
        else:
            _refuse_empty_start(locator, context, table)
        return cls(context, table, declaration)

    def is_written(self) -> bool:
        """Return whether the table was written; a first write that failed leaves an empty one."""
        return self.table.exists() and not is_unwritten(self.table.snapshot())

    @contextmanager
    def stating_empty_table(self) -> Iterator[None]:
        """Say in errors of the block that the table was created, if it was, and is empty."""
        try:
            yield
        except DeltaweaveError as error:
            try:
                is_empty = error.state == NOTHING_COMMITTED and is_unwritten(self.table.snapshot())
            except Exception:  # there is no table, or it cannot be read: the error stays as it is
                is_empty = False
            if is_empty:
                error.restate(state="No row was committed. The table was created, and is empty.")
            raise

    def refuse_missing_columns(self, changes: DataFrame) -> None:
        """Refuse keys and a sequence that the changes or the table lack, before it is created."""
        table, named = self.table, self.declaration.named_columns
        if not any(named.values()):
            return
        columns = {
            "the changes": changes.columns,
            "the table": table_columns(table, self.declaration, changes),
        }
        folded = name_folding(table.spark)
        for where, existing in columns.items():
            verb = "has" if where == "the table" else "have"
            known = set(map(folded, existing))
            for argument, names in named.items():
                lacking = [name for name in names if folded(name) not in known]
                if lacking:
                    raise StatementError(
                        f"{argument}= names {', '.join(lacking)}: no such column is in {where}, "
                        f"which {verb} {', '.join(existing)}.",
                        table=table.path_or_name,
                        hint=f"Correct {argument}= of the asset, or the columns of {where}.",
                    )

    def prepare(self, changes: DataFrame) -> None:
        """Create the table if it is missing; otherwise apply the declared policy to the changes."""
        table, declaration = self.table, self.declaration
        rows = declaration.table_rows(changes)
        schema = _created_schema(declaration, rows.schema)
        self._refuse_untyped_columns(schema, rows.schema)
        created = table.create_if_missing(
            schema,
            declaration.partition_by,
            declaration.created_properties,
            declaration.cluster_by,
            for_a_write=True,
            description=self.context.asset_spec.description,
        )
        check_owner(table, declaration)  # another asset may have created it just now
        if declaration.refuses_unknown_columns:
            _refuse_unknown_columns(table, rows.schema)
        elif declaration.schema_policy == "widen" and not created:
            _enable_widening(table)
        if declaration.sequence and not created:
            _refuse_other_sequence(table, declaration.sequence, rows.schema)

    def _refuse_untyped_columns(self, created: StructType | str, changes: StructType) -> None:
        """Refuse a VOID column, or part of one, that the table would get: no later value fits."""
        wanted = created if isinstance(created, str) else created.json()
        if "void" not in f"{wanted} {changes.json()}".lower():
            return
        folded, held = name_folding(self.table.spark), StructType([])
        if self.is_written():
            if self.declaration.schema_policy == "strict":
                return  # no column is added
            columns, held = changes, self.table.read().schema
        else:
            columns = declared_columns(created)
        known = _parts(held, folded)
        untyped = [
            f.name for f in columns if _is_untyped(f.dataType, known.get(folded(f.name)), folded)
        ]
        if untyped:
            raise StatementError(
                f"the type of the column {', '.join(untyped)} is not known, because the changes "
                "have only nulls in it or in a part of it, and it is to be created for them.",
                table=self.table.path_or_name,
                state=NOTHING_WRITTEN,
                hint="Cast it in the asset's function, e.g. CAST(NULL AS STRING), or declare "
                "schema= with its type, or add the column to the table first.",
            )

    def start_of_write(self, *, adds_only: bool = False, predicate: str | None = None) -> Start:
        """Return where a write starts that replaces all rows, those of a predicate, or none."""
        # By the asset's own dependencies: in its step, another output may depend on it.
        spec = self.context.asset_spec
        reads_itself = any(each.asset_key == spec.key for each in spec.deps)
        if adds_only and not reads_itself:
            return Start(None, reads_all=False)
        is_part = predicate is not None
        # Other outputs of the same function may be other parts of the table.
        known = other_outputs_of_step(self.context, self.table) if is_part else frozenset()
        version = version_with_rows_of(self.table, began_ms(self.context), known)
        return Start(version, reads_all=reads_itself or not is_part)


def _refuse_empty_start(locator: TableLocator, context: OutputContext, table: Table) -> None:
    """Refuse to create a table in a schema if the asset has one at its key under the root."""
    try:
        before = path_under(locator.root, context.asset_key)
    except StatementError:
        return  # no table can be at such a key
    if not deltaweave.Table(table.spark, before).exists():
        return
    raise StatementError(
        f"there is no such table, but the asset has one at {before}, whose rows it would lack.",
        table=table.path_or_name,
        operation="locating",
        state=NOTHING_WRITTEN,
        hint="Give that table its name: CREATE TABLE "
        f"{table.path_or_name} USING delta LOCATION {string_token(before)}. Or move it away.",
    )


def _is_table(spark: SparkSession, path: str) -> bool:
    """Return whether a directory above a new table is a table."""
    local = local_path(path)
    if local is not None and not (local / "_delta_log").is_dir():
        return False  # the usual case, which needs no call to the JVM
    try:
        return deltaweave.Table(spark, path).exists()
    except DeltaweaveError as error:
        if any(word in str(error) for word in _DENIED):
            return False  # what this deployment may not read is not its table
        raise


_WHOLE_NUMBERS = ("tinyint", "smallint", "int", "bigint")


def name_folding(spark: SparkSession) -> Callable[[str], str]:
    """Return the function by which the session compares names of columns."""
    is_exact = spark.conf.get("spark.sql.caseSensitive", "false") == "true"
    return str if is_exact else str.lower


def table_columns(table: Table, declaration: TableDeclaration, changes: DataFrame) -> Sequence[str]:
    """Return the columns of the table, or those with which it would be created."""
    if table.exists() and not is_unwritten(snapshot := table.snapshot()):
        return snapshot.schema.names
    if declaration.schema is None:
        return declaration.table_rows(changes).columns
    return declared_columns(declaration.schema).names


def _created_schema(declaration: TableDeclaration, schema: StructType) -> StructType | str:
    if declaration.schema is not None:
        return declaration.schema
    # Later changes may have nulls in columns that have none in these changes.
    return StructType([StructField(f.name, f.dataType, True, f.metadata) for f in schema])


def _refuse_unknown_columns(table: Table, changes: StructType) -> None:
    known = table.read().schema
    unknown = list(_unknown(changes, known, name_folding(table.spark), ""))
    if unknown:
        raise StatementError(
            f"the changes have columns that the table lacks: {', '.join(unknown)}.",
            table=table.path_or_name,
            hint=f"The table has {', '.join(known.names)}. Leave the others out of the changes, "
            "name them in except_column_list if only clauses use them, or let the schema_policy "
            "'add' or 'widen' add them.",
        )


def _refuse_other_sequence(table: Table, name: str, changes: StructType) -> None:
    """Refuse sequences that the table would truncate: an older row could then look newer."""
    ours, theirs = _type_of(name, changes), _type_of(name, table.snapshot().schema)
    sizes = [_WHOLE_NUMBERS.index(each) for each in (ours, theirs) if each in _WHOLE_NUMBERS]
    if None in (ours, theirs) or ours == theirs or (len(sizes) == 2 and sizes[0] < sizes[1]):
        return
    raise StatementError(
        f"the sequence {name} is {ours} in the changes and {theirs} in the table, where it would "
        "be stored less exactly than it is compared.",
        table=table.path_or_name,
        hint=f"Cast {name} of the changes to the table's type, or alter the table.",
    )


def _type_of(name: str, schema: StructType) -> str | None:
    types = [f.dataType.simpleString() for f in schema if f.name.lower() == name.lower()]
    return types[0] if types else None  # a statement without the column is refused by Spark


def _unknown(
    changes: StructType, known: StructType, folded: Callable[[str], str], parent: str
) -> Iterator[str]:
    """Yield the names of fields that the table's struct lacks, with dots for nested structs."""
    fields = {folded(field.name): field for field in known}
    for field in changes:
        there = fields.get(folded(field.name))
        if there is None:
            yield parent + field.name
        elif isinstance(field.dataType, StructType) and isinstance(there.dataType, StructType):
            yield from _unknown(field.dataType, there.dataType, folded, f"{parent}{field.name}.")


def _is_untyped(kind: DataType, held: DataType | None, folded: Callable[[str], str]) -> bool:
    """Return whether a type, or a part of it, is VOID and the table's type lacks that part.

    `held`: the table's type; None if the table lacks all of it.
    """
    if isinstance(kind, NullType):
        return held is None
    known = {} if held is None else _parts(held, folded)
    parts = _parts(kind, folded).items()
    return any(_is_untyped(part, known.get(name), folded) for name, part in parts)


def _parts(kind: DataType, folded: Callable[[str], str]) -> dict[str, DataType]:
    """Return the types of a type's fields, items, or keys and values."""
    if isinstance(kind, StructType):
        return {folded(field.name): field.dataType for field in kind}
    if isinstance(kind, ArrayType):
        return {"items": kind.elementType}
    if isinstance(kind, MapType):
        return {"keys": kind.keyType, "values": kind.valueType}
    return {}


def _enable_widening(table: Table) -> None:
    """Let Delta widen the types of an existing table; this commits only the first time."""
    target = table_name(table.path_or_name)
    with translated(table.path_or_name, operation="enabling type widening"):
        [detail] = table.spark.sql(f"DESCRIBE DETAIL {target}").collect()
        if detail.properties.get(TYPE_WIDENING, "false").lower() != "true":
            set_property = f"SET TBLPROPERTIES ('{TYPE_WIDENING}' = 'true')"
            with alone_on_local_disk(
                table.spark,
                table.location(),
                table=table.path_or_name,
                operation="enabling type widening",
            ):
                table.spark.sql(f"ALTER TABLE {target} {set_property}")


_BEGINNINGS = {DagsterEventType.STEP_START, DagsterEventType.STEP_RESTARTED}
_EVENTS_OF_PAGE = 100


def began_ms(context: OutputContext) -> int:
    """Return when this attempt of the step began, in ms since 1970; if unknown, when the run did.

    Ops of a graph asset pass on what the first of them read. For them it is when the run began, or
    the run that this one continues.
    """
    step = context.step_context
    if len(step.node_handle.path) > 1:
        return run_created_ms(context)
    cursor = None
    while True:
        events = step.instance.get_records_for_run(
            step.run_id, cursor=cursor, of_type=_BEGINNINGS, limit=_EVENTS_OF_PAGE, ascending=False
        )
        for record in events.records:
            event = record.event_log_entry
            if event.step_key == step.step.key:
                return int(event.timestamp * 1000)
        if not events.has_more:
            return _created_ms(context, step.run_id)
        cursor = events.cursor


def run_created_ms(context: OutputContext) -> int:
    """Return when the run, or the one whose steps or assets it resumes, was created, in ms.

    It is 0 if that run was deleted, because it is unknown when its steps began to read.
    """
    step = context.step_context
    run = _run_that_read(step.instance, step.dagster_run)
    # If a run between them was deleted, the first of all is older.
    return _created_ms(context, run.run_id if run else step.dagster_run.root_run_id)


def _run_that_read(instance: DagsterInstance, run: DagsterRun) -> DagsterRun | None:
    """Return the first of the runs that a run continues; None if it was deleted."""
    # A run that resumes failed assets names no steps. Dagster copies its tag to its retries.
    resumes = run.step_keys_to_execute or ASSET_RESUME_RETRY_TAG in run.tags
    if not (run.parent_run_id and resumes):
        return run
    before = instance.get_run_by_id(run.parent_run_id)
    first = before and _run_that_read(instance, before)
    repeats_all = before and first is before and _repeats_all(instance, run, before)
    return run if repeats_all else first


def _repeats_all(instance: DagsterInstance, run: DagsterRun, before: DagsterRun) -> bool:
    """Return whether a run repeats all steps or assets of the run that it continues."""
    if not run.step_keys_to_execute:
        planned = planned_assets(instance, before)
        return bool(planned) and planned <= planned_assets(instance, run)
    # A run that Python executes again names its steps, also if they are all of them.
    plan = before.execution_plan_snapshot_id
    steps = instance.get_execution_plan_snapshot(plan).step_keys_to_execute if plan else []
    return bool(steps) and set(steps) <= set(run.step_keys_to_execute)


def _created_ms(context: OutputContext, run_id: str | None) -> int:
    run = context.step_context.instance.get_run_record_by_id(run_id) if run_id else None
    return 0 if run is None else int(run.create_timestamp.timestamp() * 1000)
