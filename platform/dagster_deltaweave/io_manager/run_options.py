"""How a run writes an asset: as declared, and as changed by its tags and its output."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import singledispatch
from typing import TYPE_CHECKING, Literal, cast, get_args

from dagster_deltaweave.partitions import FULL_REFRESH_TAG, ORDER_TAG
from dagster_deltaweave.tables import (
    MergeDeclaration,
    Order,
    SchemaPolicy,
    TableDeclaration,
    WriteDeclaration,
    WriteMode,
    partition_expr_in,
    table_declaration,
    table_location,
)
from deltaweave._validation import choice_problem
from deltaweave.errors import NOTHING_WRITTEN, StatementError

if TYPE_CHECKING:
    from dagster import OutputContext

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
    given = context.output_metadata.get(_MODE)
    if given is None or not isinstance(declaration, WriteDeclaration):
        return declaration
    mode = getattr(given, "value", given)
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


@singledispatch
def _check_has_policy(declaration: TableDeclaration, asset: str) -> None:
    """Refuse a schema policy for tables on which a policy has no effect."""
    raise _invalid_tag_error(
        f"the run's tag {SCHEMA_POLICY_TAG} does not apply to a table of change events.",
        asset,
        "Such a table has no schema policy. Run the asset without the tag.",
    )


@_check_has_policy.register(WriteDeclaration)
def _check_write_has_policy(declaration: WriteDeclaration, asset: str) -> None:
    """Accept a schema policy for each way to write."""


@_check_has_policy.register(MergeDeclaration)
def _check_merge_has_policy(declaration: MergeDeclaration, asset: str) -> None:
    if declaration.merge_text is not None:
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
