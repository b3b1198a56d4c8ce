"""What tasks on executors run: plain Python over Arrow and Parquet, pickled by value.

Executors need not have deltaweave installed. So this folder imports nothing else of deltaweave, and
is pickled as a whole with the functions that a task calls.
"""

from __future__ import annotations

import sys

from pyspark.cloudpickle import register_pickle_by_value

from deltaweave.engine.tasks.bloom_filters import (
    FILTERS_SCHEMA,
    HOLDERS_SCHEMA,
    filters_of,
    holders_of,
)
from deltaweave.engine.tasks.parquet_rewrite import REWRITTEN_SCHEMA, TableFormat, rewriter

__all__ = [
    "FILTERS_SCHEMA",
    "HOLDERS_SCHEMA",
    "REWRITTEN_SCHEMA",
    "TableFormat",
    "filters_of",
    "holders_of",
    "rewriter",
]

register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]
