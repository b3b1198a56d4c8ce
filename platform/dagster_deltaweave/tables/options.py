"""The options of tables, which decorators, YAML and the IO manager share.

A field is a keyword of the decorators, which document it. Its description is what YAML's editors
show. Those of change events are the keywords of `deltaweave.apply_changes` and
`deltaweave.MergeOnReadTable`, too.
"""

# No `from __future__ import annotations`: components inherit the fields, with their annotations.

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import timedelta
from functools import partial
from typing import Annotated, Any, Literal

from dagster import Model, ResolutionContext, Resolvable, Resolver
from pydantic import BaseModel, Field

SchemaPolicy = Literal["strict", "add", "widen"]
"""What happens to columns that a table lacks: an error, added, or added and types widened."""

IdempotentBy = Literal["partition", "delivery"]
"""What an asset applies only once: each partition, or each delivery of one."""

Order = Literal["partition", "any"]
"""The order of merges: `partition` never merges an older one after a newer one."""

_WEEK, _HOUR = timedelta(days=7), timedelta(hours=1)


class Duration(Model, Resolvable):
    """A time span, e.g. `{days: 7}`: the sum of its parts."""

    days: Annotated[float, Field(ge=0)] = 0
    hours: Annotated[float, Field(ge=0)] = 0
    minutes: Annotated[float, Field(ge=0)] = 0
    seconds: Annotated[float, Field(ge=0)] = 0

    def timedelta(self) -> timedelta:
        """Return the span as a Python `timedelta`."""
        return timedelta(
            days=self.days, hours=self.hours, minutes=self.minutes, seconds=self.seconds
        )


def _span(default: timedelta, context: ResolutionContext, given: BaseModel | None) -> timedelta:
    """Return the time span that YAML gives, or the default."""
    if given is None:
        return default
    duration: Duration = Duration.resolve_from_model(context, given)
    return duration.timedelta()


@dataclass(frozen=True, kw_only=True)
class TableOptions:
    """The options of a table that is created and written by rows."""

    partition_by: Annotated[Sequence[str], Field(description="Its partition columns.")] = ()
    cluster_by: Annotated[Sequence[str], Field(description="Its clustering columns.")] = ()
    properties: Annotated[Mapping[str, str] | None, Field(description="Its table properties.")] = (
        None
    )
    schema_policy: Annotated[
        SchemaPolicy, Field(description="What happens to columns that the table lacks.")
    ] = "strict"
    partition_expr: Annotated[
        str | Mapping[str, str] | None,
        Field(description="SQL of a row's partition, if partitions are parts of the table."),
    ] = None
    idempotent_by: Annotated[
        IdempotentBy | None, Field(description="What a re-run must not apply again.")
    ] = None


@dataclass(frozen=True, kw_only=True)
class MergeOptions:
    """The options of a merge."""

    keys: Annotated[Sequence[str], Field(description="Columns that identify a row.")] = ()
    unique_keys: Annotated[
        bool, Field(description="Whether several changes for one key that is new are an error.")
    ] = True
    on: Annotated[
        str | None, Field(description="The merge condition, if it is more than equal keys.")
    ] = None
    merge_text: Annotated[
        str | None,
        Resolver(lambda _, text: text, model_field_type=str, inject_before_resolve=False),
        Field(description="A whole MERGE statement with {target} and {source}."),
    ] = None
    except_column_list: Annotated[
        Sequence[str], Field(description="Columns of the changes that only clauses use.")
    ] = ()
    sequence_by: Annotated[
        str | None, Field(description="Column that says which of two rows is newer.")
    ] = None
    order: Annotated[
        Order, Field(description="Whether partitions are merged in their order or in any order.")
    ] = "partition"
    skip_unchanged_updates: Annotated[
        bool, Field(description="Whether to skip updates that change no value of their row.")
    ] = False


@dataclass(frozen=True, kw_only=True)
class EventArguments:
    """The options that all tables of change events have."""

    keys: Annotated[Sequence[str], Field(description="Columns that identify a row.")]
    sequence_by: Annotated[str, Field(description="SQL that orders the events of a key.")]
    apply_as_deletes: Annotated[
        str | None, Field(description="SQL condition of events that delete their key's row.")
    ] = None
    apply_as_truncates: Annotated[
        str | None, Field(description="SQL condition of events that delete all older rows.")
    ] = None
    ignore_null_updates: Annotated[
        bool, Field(description="Whether nulls leave columns as they are.")
    ] = False
    present_columns: Annotated[
        str | None, Field(description="Column with the names of the columns that an event sets.")
    ] = None
    column_list: Annotated[
        Sequence[str] | None, Field(description="Columns of the events that the table has.")
    ] = None
    except_column_list: Annotated[
        Sequence[str] | None, Field(description="Exclude these event columns from the table.")
    ] = None
    message_column: Annotated[
        str | None, Field(description="Column with the message of each event.")
    ] = None
    rescued: Annotated[
        bool | str,
        Field(
            description="Whether events that cannot be applied go to a table of their own, or it."
        ),
    ] = False
    late_by: Annotated[
        timedelta,
        Resolver(partial(_span, _WEEK), model_field_type=Duration.model() | None),
        Field(description="How long deletes are remembered; by default 7 days."),
    ] = _WEEK


@dataclass(frozen=True, kw_only=True)
class CurrentTableOptions(EventArguments):
    """The options of a table that events keep current: of its rows, or of their histories."""

    stored_as_scd_type: Annotated[
        Literal[1, 2], Field(description="1 for current rows, 2 for histories.")
    ] = 1
    track_history_column_list: Annotated[
        Sequence[str] | None, Field(description="Columns whose change begins a version.")
    ] = None
    track_history_except_column_list: Annotated[
        Sequence[str] | None, Field(description="Columns whose change begins none.")
    ] = None


@dataclass(frozen=True, kw_only=True)
class MergeOnReadArguments(EventArguments):
    """The options of a table whose events are appended now and merged later."""

    inserts: Annotated[
        str | None, Field(description="SQL condition of events that insert new keys.")
    ] = None
    partition_by: Annotated[Sequence[str], Field(description="Partition columns of the base.")] = ()
    keep_merged_for: Annotated[
        timedelta,
        Resolver(partial(_span, _HOUR), model_field_type=Duration.model() | None),
        Field(description="How long changes are kept once merged; by default an hour."),
    ] = _HOUR
    broadcast_limit_bytes: Annotated[
        int, Field(description="Changes up to this measured size are broadcast.")
    ] = 2**30


def options_in(kind: type[Any], given: object) -> dict[str, Any]:
    """Return the options of a kind that an object has as attributes, by their names."""
    return {each.name: getattr(given, each.name) for each in fields(kind)}
