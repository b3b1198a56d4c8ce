"""Refuses sessions without Delta, and what is no session, DataFrame or name, in clear sentences."""

from __future__ import annotations

from contextlib import suppress
from importlib.metadata import PackageNotFoundError

from pyspark.sql import SparkSession

from deltaweave import errors
from deltaweave._session import DELTA_SETTINGS, delta_conf

_EXTENSIONS = "spark.sql.extensions"
_CATALOG = "spark.sql.catalog.spark_catalog"


def check_is_classic(spark: object) -> None:
    """Refuse what is no session of this process's JVM.

    Raises:
        UnsupportedSessionError: It is a session of Spark Connect.
        StatementError: It is no session.
    """
    if type(spark).__module__.startswith("pyspark.sql.connect"):
        raise errors.UnsupportedSessionError(
            "the session is one of Spark Connect, and deltaweave works in the driver's JVM.",
            operation="opening the session",
            state=errors.NOTHING_DONE,
            hint="Run it where the driver is: start Spark with deltaweave.local_session(), or with "
            "spark.api.mode=classic.",
        )
    if not isinstance(spark, SparkSession):
        raise errors.StatementError(
            f"the first argument is {_kind(spark)}, and a SparkSession is needed.",
            operation="opening the session",
            state=errors.NOTHING_DONE,
            hint="Give the session first, e.g. deltaweave.local_session().",
        )


def check_has_delta(spark: SparkSession, *, is_on_classpath: bool) -> None:
    """Refuse a session without Delta's classes, or with its jars but not its two settings.

    Args:
        spark: The session.
        is_on_classpath: Whether Delta's classes are there.

    Raises:
        UnsupportedSessionError: The session was started without Delta.
    """
    needed = " and ".join(f"{key}={DELTA_SETTINGS[key]}" for key in (_EXTENSIONS, _CATALOG))
    if not is_on_classpath:
        problem = "the session has no Delta Lake."
        with suppress(PackageNotFoundError):  # a package without metadata, as by --py-files
            needed = f"spark.jars.packages={delta_conf()['spark.jars.packages']}, {needed}"
    else:
        is_there = {"extension": _has_extension(spark), "catalog": _has_catalog(spark)}
        lacking = [f"Delta's {what}" for what, there in is_there.items() if not there]
        if not lacking:
            return
        problem = f"the session has Delta's jars, but was started without {' and '.join(lacking)}."
    raise errors.UnsupportedSessionError(
        problem,
        operation="opening the session",
        state=errors.NOTHING_DONE,
        hint=f"Start Spark with deltaweave.local_session(), or with {needed}.",
    )


def _has_extension(spark: SparkSession) -> bool:
    named = (spark.conf.get(_EXTENSIONS, "") or "").split(",")
    if DELTA_SETTINGS[_EXTENSIONS] in [name.strip() for name in named]:
        return True
    # Code in the JVM may have added it without the setting.
    parser = spark._jsparkSession.sessionState().sqlParser()
    return str(parser.getClass().getName()).startswith("io.delta.")


def _has_catalog(spark: SparkSession) -> bool:
    # Other catalogs, as those of products, may stand before Delta's: Spark's own does not.
    return (spark.conf.get(_CATALOG, "") or "") not in ("", "builtin")


def check_is_data_frame(rows: object, argument: str, *, table: str, operation: str) -> None:
    """Refuse rows that are no DataFrame of a classic session.

    Args:
        rows: The rows.
        argument: The argument's name.
        table: The table, for the error message.
        operation: The operation, for the error message.

    Raises:
        UnsupportedSessionError: They are of Spark Connect.
        StatementError: They are of another type.
    """
    session = None if _library(rows) in _HINTS else getattr(rows, "sparkSession", None)
    if session is not None:
        check_is_classic(session)
        return
    hint = _HINTS.get(_library(rows), "Give a DataFrame of the session.")
    raise errors.StatementError(
        f"{argument} is {_kind(rows)}, and a Spark DataFrame is needed.",
        table=table,
        operation=operation,
        hint=hint,
    )


def check_is_path_or_name(given: object) -> None:
    """Refuse what is no text.

    Raises:
        StatementError: It is of another type.
    """
    if isinstance(given, str):
        return
    hint = "Give its path or name as a string."
    if _library(given) == "delta":
        hint = "Give its path, table.detail().first().location, or its name."
    raise errors.StatementError(
        f"the table is given as {_kind(given)}, and its path or name is needed.",
        operation="opening",
        state=errors.NOTHING_DONE,
        hint=hint,
    )


_FROM_ROWS = "Make one of them: spark.createDataFrame(rows)."
_HINTS = {
    "pandas": _FROM_ROWS,
    "pyarrow": _FROM_ROWS,
    "polars": "Make one of them: spark.createDataFrame(rows.to_arrow()).",
    "delta": "Give the rows of the table: table.toDF().",
    "builtins": "Give a DataFrame of the session, e.g. spark.table(name) or "
    "spark.createDataFrame(rows).",
}


def _library(value: object) -> str:
    return type(value).__module__.split(".")[0]


def _kind(value: object) -> str:
    """Name a type as its users call it, e.g. `a pandas DataFrame`."""
    library, name = _library(value), type(value).__name__
    if library == "builtins":
        return "None" if value is None else f"a value of type {name}"
    return f"a {name} of {library}"
