"""An output of an asset: what is to be stored and how, what was stored, and what is recorded of it.

It is written as declared, and as changed by the run's tags and by the output's own metadata.

Once the rows are committed, no error fails the run, because a retry would apply them twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

from dagster import AssetMaterialization

from dagster_deltaweave.metadata import (
    TABLE_VERSION,
    in_order,
    record_data_version,
    table_metadata,
    warnings_metadata,
)
from dagster_deltaweave.partitions import FULL_REFRESH_TAG, ORDER_TAG, lists_partitions, tags_of_run
from dagster_deltaweave.tables import (
    ChangesOfPartitions,
    MergeDeclaration,
    Order,
    SchemaPolicy,
    TableDeclaration,
    WriteDeclaration,
    WriteMode,
    entry_value,
    partition_expr_in,
    table_declaration,
    table_location,
    touched_upstreams,
)
from deltaweave._validation import choice_problem
from deltaweave.errors import NOTHING_WRITTEN, StatementError

if TYPE_CHECKING:
    from dagster import AssetExecutionContext, AssetKey, OutputContext
    from pyspark.sql import DataFrame

    from dagster_deltaweave.io_manager.target_table import TargetTable
    from dagster_deltaweave.tables import Changes, TableLocator
    from deltaweave import Table


SCHEMA_POLICY_TAG = "deltaweave/schema_policy"
"""Run tag: the schema policy of this run."""

RETRIES_TAG = "deltaweave/retries"
"""Run tag: how often this run tries again after a transient error."""

EXPLAIN_TAG = "deltaweave/explain"
"""Run tag: `true` explains each merge of this run before it runs, `false` none."""

_MODE = "mode"  # as the IO managers of Dagster's own integrations name it
_MODES_OF_OUTPUT = ("append", "overwrite")

ORDER_WAIT_TAG = "deltaweave/order_wait_seconds"
"""Run tag: how long this run waits for one run of an older partition, in s."""


@dataclass(frozen=True)
class RunOptions:
    """How a run writes an asset.

    Attributes:
        declaration: The asset's declaration, as changed by the run's tags.
        explain: Whether the merge is explained before it runs.
        wait_seconds: How long the run waits for one run of an older partition, in s.
    """

    declaration: TableDeclaration
    explain: bool
    wait_seconds: float


def declaration_of(context: OutputContext) -> TableDeclaration | None:
    """Return the declaration of the asset's table; None if the asset declares none."""
    name = context.asset_key.to_user_string()
    return table_declaration(context.definition_metadata, asset=name)


def declared_write(
    context: OutputContext, otherwise: Literal["overwrite", "append", "error"]
) -> TableDeclaration:
    """Return how the asset's table is written; by `otherwise` if it declares nothing."""
    declaration = declaration_of(context)
    if declaration is not None:
        return declaration
    name, metadata = context.asset_key.to_user_string(), context.definition_metadata
    if otherwise == "error":
        raise StatementError(
            f"the asset {name} does not say how its rows are stored.",
            table=name,
            operation="storing",
            hint="Declare it with @merge_asset, give it the metadata deltaweave/write, or set "
            "mode='overwrite' for such assets on the IO manager.",
        )
    location = table_location(metadata, asset=name)
    return WriteDeclaration(
        mode=otherwise,
        table=location.table,
        namespace=location.namespace,
        partition_expr=partition_expr_in(metadata),
    )


def with_mode_of_output(declaration: TableDeclaration, context: OutputContext) -> TableDeclaration:
    """Return the declaration, with the mode that the run's output names in its metadata."""
    given = context.output_metadata
    if given.get(_MODE) is None or not isinstance(declaration, WriteDeclaration):
        return declaration
    mode = entry_value(given, _MODE)
    name = context.asset_key.to_user_string()
    problem = choice_problem(f"the output's metadata {_MODE}", mode, _MODES_OF_OUTPUT)
    if problem is not None:
        raise _invalid_tag_error(problem, name, "Give one of these values, or leave it out.")
    return replace(declaration, mode=cast(WriteMode, mode), replace_where=None)


def with_tags(options: RunOptions, tags: Mapping[str, str], asset: str) -> RunOptions:
    """Return the options as changed by the run's tags."""
    declaration = options.declaration
    if FULL_REFRESH_TAG in tags:
        _check_choice(FULL_REFRESH_TAG, tags[FULL_REFRESH_TAG].lower(), ("true", "false"), asset)
    if ORDER_TAG in tags:
        _check_choice(ORDER_TAG, tags[ORDER_TAG], get_args(Order), asset)
    if SCHEMA_POLICY_TAG in tags:
        policy = tags[SCHEMA_POLICY_TAG]
        _check_choice(SCHEMA_POLICY_TAG, policy, get_args(SchemaPolicy), asset)
        _check_has_policy(declaration, asset)
        tagged = replace(declaration, schema_policy=cast(SchemaPolicy, policy))
        _check_order_stays(declaration, tagged, asset)
        declaration = tagged
    if RETRIES_TAG in tags:
        retries = _whole_number(RETRIES_TAG, tags[RETRIES_TAG], asset)
        declaration = replace(declaration, retries=retries)
    explain, wait_seconds = options.explain, options.wait_seconds
    if EXPLAIN_TAG in tags:
        _check_choice(EXPLAIN_TAG, tags[EXPLAIN_TAG], ("true", "false"), asset)
        explain = tags[EXPLAIN_TAG] == "true"
    if ORDER_WAIT_TAG in tags:
        wait_seconds = _whole_number(ORDER_WAIT_TAG, tags[ORDER_WAIT_TAG], asset)
    return RunOptions(declaration, explain, wait_seconds)


def _check_choice(tag: str, given: str, known: tuple[str, ...], asset: str) -> None:
    problem = choice_problem(f"the run's tag {tag}", given, known)
    if problem is not None:
        raise _invalid_tag_error(
            problem, asset, "Execute it again with one of these values, or without it."
        )


def _whole_number(tag: str, given: str, asset: str) -> int:
    if not (given.isascii() and given.isdigit()):
        raise _invalid_tag_error(
            f"the run's tag {tag} is {given!r}.", asset, "Give it a whole number, 0 or more."
        )
    return int(given)


def _check_has_policy(declaration: TableDeclaration, asset: str) -> None:
    """Refuse a schema policy for tables on which a policy has no effect."""
    if not declaration.has_schema_policy:
        raise _invalid_tag_error(
            f"the run's tag {SCHEMA_POLICY_TAG} does not apply to a table of change events.",
            asset,
            "Such a table has no schema policy. Run the asset without the tag.",
        )
    if isinstance(declaration, MergeDeclaration) and declaration.merge_text is not None:
        raise _invalid_tag_error(
            f"the run's tag {SCHEMA_POLICY_TAG} does not apply to a merge_text.",
            asset,
            "The text itself says so, by WITH SCHEMA EVOLUTION. Run the asset without the tag.",
        )


def _check_order_stays(declared: TableDeclaration, tagged: TableDeclaration, asset: str) -> None:
    """Refuse a policy with which this run, unlike others, would not wait for older partitions."""
    if declared.needs_order and not tagged.needs_order:
        raise _invalid_tag_error(
            f"the run's tag {SCHEMA_POLICY_TAG} would let this run pass the order of partitions.",
            asset,
            "Run the asset without the tag, or change the policy that it declares.",
        )


def _invalid_tag_error(problem: str, asset: str, hint: str) -> StatementError:
    return StatementError(
        problem, table=asset, operation="writing", state=NOTHING_WRITTEN, hint=hint
    )


@dataclass(frozen=True, kw_only=True)
class Output:
    """What a run stores in the table of an asset.

    Attributes:
        target: The asset's table, which may be missing, and how it is written.
        changes: What the asset's function returned.
        rows: The rows of `changes` that are written.
        options: How the run writes the table.
    """

    target: TargetTable
    tables: TableLocator
    changes: Changes
    rows: DataFrame
    partitions: Sequence[str]
    options: RunOptions

    @property
    def context(self) -> OutputContext:
        """The context of the asset's output."""
        return self.target.context

    @property
    def table(self) -> Table:
        """The asset's table, which may be missing."""
        return self.target.table

    @property
    def declaration(self) -> TableDeclaration:
        """How the table is written."""
        return self.target.declaration

    @property
    def returned_partitions(self) -> Sequence[str]:
        """The partitions whose rows the function returned: all, unless it returned a dict."""
        changes = self.changes
        return [*changes.parts] if isinstance(changes, ChangesOfPartitions) else self.partitions

    @property
    def tags(self) -> Mapping[str, str]:
        """The run's tags."""
        step = self.context.step_context
        return tags_of_run(step.dagster_run, step.instance)

    @property
    def upstreams(self) -> list[AssetKey]:
        """The upstreams that the asset reads by touched or changed rows alone."""
        definition = self.context.step_context.assets_def
        return touched_upstreams(definition) if definition else []


@dataclass(frozen=True)
class Stored:
    """What was committed, and how it is recorded.

    Attributes:
        version: The committed version; None if there is none, or it is unknown.
        record: Records the commit and returns the metadata of the materialization.
        warnings: A sentence for each step after the commit that failed already.
        record_before: Records what the run applies, if the table held it before, so that nothing
            was committed; None otherwise.
    """

    version: int | None
    record: Callable[[], Mapping[str, Any]]
    warnings: Sequence[str] = ()
    record_before: Callable[[], Mapping[str, Any]] | None = None


@dataclass(frozen=True)
class Recording:
    """Recording after the commit: errors become warnings, because a retry would apply rows twice.

    Attributes:
        warnings: A sentence for each failure so far.
    """

    context: OutputContext | AssetExecutionContext
    warnings: list[str] = field(default_factory=list)

    def attempt(
        self, what: str, recorded: Callable[[], Mapping[str, Any] | None]
    ) -> Mapping[str, Any]:
        """Call a recording function; if it fails, note a warning and return an empty mapping."""
        try:
            return recorded() or {}
        except Exception as error:
            self.warnings.append(f"{what} is left out: {error}")
            return {}

    def add_metadata(self, metadata: Mapping[str, Any]) -> None:
        """Add the metadata, and the warnings to it and to the run's log."""
        shown = {**metadata, **warnings_metadata(self.warnings)}
        try:
            self.context.add_output_metadata(shown)
        except Exception as error:
            self.warnings.append(f"the metadata is left out: {error}")
        for warning in self.warnings:
            self.context.log.warning(f"The rows are committed, with a warning: {warning}")


def record_stored(output: Output, stored: Stored) -> None:
    """Record what was stored: its partitions, its data version, its metadata."""
    context, table = output.context, output.table
    after = Recording(context, list(stored.warnings))
    if stored.record_before is not None:
        after.attempt("what it merged before", stored.record_before)
    version = stored.version
    if version is not None:  # until `Stored.record` sets a more exact one
        after.attempt("the data version", lambda: record_data_version(context, version))
    metadata = after.attempt("what was recorded of it", stored.record)
    described = after.attempt(
        "the table's metadata", lambda: _metadata_as_recorded(table, metadata)
    )
    after.add_metadata(in_order(metadata, described))
    record_listed_partitions(context, output.partitions)


def record_listed_partitions(context: OutputContext, partitions: Sequence[str]) -> None:
    """Record the run's partitions if its tags list them."""
    if lists_partitions(context):
        # Dagster itself records only a partition or range that its own tags name.
        for partition in partitions:
            context.log_event(AssetMaterialization(context.asset_key, partition=partition))


def _metadata_as_recorded(table: Table, recorded: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the metadata of the recorded version; of the newest version if none was recorded."""
    if not table.exists():  # a first batch without events creates no table
        return {}
    return table_metadata(table, recorded.get(TABLE_VERSION))
