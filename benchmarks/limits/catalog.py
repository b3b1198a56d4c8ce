"""The limits that are measured, by name."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.limits.decoded_bytes import late_bytes, repeated_text, wide_keys
from benchmarks.limits.limit import Limit
from benchmarks.limits.many_files import many_add_files, many_partitions
from benchmarks.limits.many_rows import large_source, many_pairs, many_rows
from benchmarks.limits.wide_statements import many_clauses, many_columns

LIMITS = (
    Limit("clauses", "clauses in a statement", 100, 10, many_clauses),
    Limit("columns", "columns, all updated", 2_000, 10, many_columns),
    Limit("add_files", "AddFiles in a log", 1_000_000, 10, many_add_files),
    Limit("partitions", "partitions, all touched", 10_000, 2, many_partitions),
    Limit("source", "MiB of source, executor of 1,024 MiB", 2_048, 1, large_source),
    Limit("pairs", "pairs of matching rows", 100_000_000, 1_000, many_pairs),
    Limit("repeated_text", "MiB of text that repeats, in one file", 2_304, 1, repeated_text),
    Limit("wide_keys", "keys of 3,000 characters", 400_000, 4, wide_keys),
    Limit("late_bytes", "MiB of text after rows without", 4_096, 1, late_bytes),
    Limit("rows", "rows of a target", 50_000_000, 1_000, many_rows),
)


class UnknownLimitError(ValueError):
    """No limit has that name."""


def chosen_limits(names: Sequence[str]) -> list[Limit]:
    """Return the limits with these names, in the order of the names; all limits without names.

    Raises:
        UnknownLimitError: No limit has one of the names.
    """
    known = {limit.name: limit for limit in LIMITS}
    for name in names:
        if name not in known:
            raise UnknownLimitError(f"No limit is named {name}. There are: {', '.join(known)}.")
    return [known[name] for name in names] if names else list(LIMITS)
