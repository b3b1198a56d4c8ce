"""Whether the executors' Python has pyarrow and numpy, without which no task of ours runs there.

The first task that needs them finds out. It is logged once, and no later merge of this driver tries
again: Spark does the work, and key indexes are not used.
"""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

WITHOUT_PYARROW = "the executors' Python has no pyarrow or no numpy (spark.pyspark.python)"

_IS_MISSING = re.compile(
    r"No module named '(pyarrow|numpy)['.]|PACKAGE_NOT_INSTALLED[^\n]*(PyArrow|pyarrow|NumPy|numpy)"
)

# The interpreters that lack one, by the driver that starts them.
_LACKING: WeakKeyDictionary[SparkContext, set[str]] = WeakKeyDictionary()


def lacks_pyarrow(spark: SparkSession) -> bool:
    """Return whether a task has found that the executors' Python lacks pyarrow or numpy."""
    context = spark.sparkContext
    return context.pythonExec in _LACKING.get(context, ())


def found_without_pyarrow(spark: SparkSession, error: Exception) -> bool:
    """Return whether a task failed for lack of one of them; warn once, and remember it.

    Args:
        spark: The session whose task failed.
        error: With what it failed.
    """
    if not _IS_MISSING.search(str(error)):
        return False
    context = spark.sparkContext
    lacking = _LACKING.setdefault(context, set())
    if context.pythonExec not in lacking:
        lacking.add(context.pythonExec)
        logger.warning(
            "The executors' Python (%s) has no pyarrow or no numpy. Spark rewrites files that "
            "could be copied in place, and key indexes are not used. Install both there, or set "
            "spark.pyspark.python (or PYSPARK_PYTHON) to an interpreter that has them, and "
            "start a new session: this one does not try again.",
            context.pythonExec,
        )
    return True
