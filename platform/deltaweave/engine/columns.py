"""Names of the columns that the engine adds to rows of the target and the source.

No table and no source has columns with their prefix: `resolve` refuses such statements.
"""

from __future__ import annotations

from deltaweave.identifiers import RESERVED_PREFIX

FILE = f"{RESERVED_PREFIX}file"
"""The file of a target row: its absolute, percent-encoded location."""
TARGET_ROW_ID = f"{RESERVED_PREFIX}row_id"
"""A number that is unique among the rows of a scan or, if asked for, of a file: the row index."""
SOURCE_ROW = f"{RESERVED_PREFIX}source_row"
"""The identity of the source row in a pair; null where no source row matches."""
SOURCE_ROW_ID = f"{RESERVED_PREFIX}source_row_id"
"""The unique number of a materialized source row."""
SOURCE_ROW_PRESENT = f"{RESERVED_PREFIX}source_row_present"
"""True in every source row, so that null in a joined row means that there is none."""
TARGET_ROW_PRESENT = f"{RESERVED_PREFIX}target_row_present"
"""True in every target row, so that null in a joined row means that there is none."""
NEW_ROW = f"{RESERVED_PREFIX}new_row"
"""In pairs on the driver, the number of the row that the pair's clause gives."""
ELSEWHERE = f"{RESERVED_PREFIX}elsewhere"
"""In pairs on the driver, whether the new row goes to another file than that of the old one."""
CLAUSE = f"{RESERVED_PREFIX}clause"
"""The index in the statement of the clause that takes a row, or `NO_CLAUSE`."""
INSERT_CLAUSE = f"{RESERVED_PREFIX}insert_clause"
"""The index of the insert clause that takes a source row without a match, or `NO_CLAUSE`."""
MATCHES = f"{RESERVED_PREFIX}matches"
"""How many source rows match a target row."""
INSERTABLE = f"{RESERVED_PREFIX}insertable"
"""Whether an insert clause would take a source row if it matched nothing."""
NUMBER = f"{RESERVED_PREFIX}number"
"""File and row index of a target row as one number."""
CLAUSE_VALUES = f"{RESERVED_PREFIX}values"
"""The values that a clause gives a row, as one struct."""
READ = f"{RESERVED_PREFIX}read"
"""A column of the source or the target that a clause reads; followed by its index among these."""
KEY = f"{RESERVED_PREFIX}key"
"""The value that an equality of the ON condition compares; followed by the equality's index."""
IS_DELETED = f"{RESERVED_PREFIX}is_deleted"
"""Whether a clause deletes the row."""
WIDTH = f"{RESERVED_PREFIX}width"
"""The bytes of a row, as `source.prepared` counts them."""
SOURCE_WIDTH = f"{RESERVED_PREFIX}source_width"
"""The bytes of a source row, beside columns that have a width of their own."""
BREAKS_CONSTRAINT = f"{RESERVED_PREFIX}breaks_constraint"
"""Whether the new values of a row break a constraint of the table."""

NO_CLAUSE = -1
"""`CLAUSE` of a row that no clause takes."""
