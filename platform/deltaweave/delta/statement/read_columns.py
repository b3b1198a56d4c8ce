"""What WHEN MATCHED clauses read of the target's rows, for conditions and values or to keep it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from deltaweave.delta import jvm as jvm_
from deltaweave.delta.jvm import JavaObject
from deltaweave.delta.statement.conditions import columns_kept
from deltaweave.delta.statement.resolved import ResolvedMerge
from deltaweave.delta.statement.spark_types import spark_type

if TYPE_CHECKING:
    import numpy
    from pyspark.sql.types import DataType


@dataclass(frozen=True)
class Attribute:
    """A column of the source or the target, as a resolved statement knows it."""

    name: str
    data_type: DataType
    node: JavaObject

    @staticmethod
    def of(node: JavaObject) -> Attribute:
        """Convert Spark's AttributeReference."""
        return Attribute(str(node.name()), spark_type(node.dataType()), node)


@dataclass(frozen=True)
class TargetReads:
    """What WHEN MATCHED clauses read.

    Attributes:
        computed: By the index of an update clause, which columns of the evolved schema it computes;
            the others are those of the target's row. Clauses that compute all are missing.
        target: The target's columns that conditions and computed values read.
        source: The source's columns that they read beside these; none if they read no column of the
            target.
        of_source_alone: The indexes of update clauses whose values read the source alone, while a
            condition or another clause reads the target. Their columns are not among `source`.
    """

    computed: Mapping[int, numpy.ndarray] = field(default_factory=dict)
    target: Sequence[Attribute] = ()
    source: Sequence[Attribute] = ()
    of_source_alone: frozenset[int] = frozenset()

    @property
    def takes_query(self) -> bool:
        """Whether clauses can only be evaluated over pairs of a target row and a source row."""
        return bool(self.target)

    @property
    def takes_old_rows(self) -> bool:
        """Whether new rows need any column of the rows that they replace."""
        return self.takes_query or bool(self.computed)

    def kept(self, clause: int, names: Sequence[str]) -> list[str]:
        """Return the columns of the evolved schema that a clause leaves as they are."""
        computed = self.computed.get(clause)
        if computed is None:
            return []
        return [name for name, is_computed in zip(names, computed, strict=True) if not is_computed]


def target_reads(merge: ResolvedMerge, *, checks_rows: bool) -> TargetReads:
    """Return what the WHEN MATCHED clauses read of the target.

    Args:
        merge: The statement.
        checks_rows: Whether new rows are checked as a whole, so that columns that an update leaves
            as they are count as computed, too.
    """
    import numpy as np

    computed: dict[int, numpy.ndarray] = {}
    read, of_source_alone = [], set()
    of_table = merge.target_attributes
    for i, clause in enumerate(merge.clauses):
        if clause.kind != "matched":
            continue
        if clause.node.condition().isDefined():
            read.append(clause.node.condition().get())
        if clause.action != "update":
            continue
        values, reads_target = clause.value_expressions(), not merge.reads_source_alone(clause)
        if reads_target and not checks_rows:
            mask = ~np.array(columns_kept(merge, clause), dtype=bool)
            # No query gives a struct without fields: what computes nothing counts as computing all.
            if mask.any() and not mask.all():
                computed[i] = mask
                values = jvm_.select_where(jvm_.jvm(merge.spark), values, mask)
                read_by_values = merge.attributes_of(list(jvm_.iterate(values)))
                reads_target = not read_by_values.intersect(of_table).isEmpty()
        if reads_target:
            read += list(jvm_.iterate(values))
        else:
            of_source_alone.add(i)
    both = merge.attributes_of(read)
    # Of the table's own attributes, since the others are spelled as in the statement.
    of_target = of_table.intersect(both)
    if of_target.isEmpty():
        return TargetReads(computed)
    of_source = merge.source_attributes.intersect(both)
    return TargetReads(
        computed,
        [Attribute.of(node) for node in jvm_.iterate(of_target)],
        [Attribute.of(node) for node in jvm_.iterate(of_source)],
        frozenset(of_source_alone),
    )
