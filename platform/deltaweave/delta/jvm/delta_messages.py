"""The errors that Delta itself would raise: their messages, error classes and SQLSTATEs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.errors.exceptions.captured import convert_exception

from deltaweave.delta.jvm.errors import condition_and_state
from deltaweave.delta.jvm.gateway import jvm
from deltaweave.delta.jvm.names import JavaObject

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


SPARK_ERRORS = (PySparkException, Py4JJavaError)
"""What PySpark raises for an exception of the JVM: translated by its class, or as it is."""


def delta_error(view: JavaObject, name: str, *arguments: Any) -> JavaObject:
    """Build the exception of Delta's `DeltaErrors.name(...)`, so that the wording is Delta's."""
    module = getattr(view.org.apache.spark.sql.delta, "DeltaErrors$")
    return getattr(getattr(module, "MODULE$"), name)(*arguments)


@dataclass(frozen=True)
class DeltaMessage:
    """What one of Delta's errors says.

    Attributes:
        text: Its message.
        error_class: Its error class.
        sql_state: Its SQLSTATE, if it has one.
    """

    text: str
    error_class: str
    sql_state: str | None


def delta_message(spark: SparkSession, name: str, *, with_session: bool = False) -> DeltaMessage:
    """Read the message of the error that Delta's `DeltaErrors.name()` builds.

    Args:
        spark: The session.
        name: The method's name.
        with_session: Whether the method takes the session.
    """
    error = _built(spark, name, with_session)
    return DeltaMessage(str(error.getMessage()), *condition_and_state(error))


def python_error(spark: SparkSession, name: str, *, with_session: bool = False) -> Exception:
    """Build the exception that PySpark makes of the error of Delta's `DeltaErrors.name()`."""
    error: Exception = convert_exception(_built(spark, name, with_session))
    return error


def _built(spark: SparkSession, name: str, with_session: bool) -> JavaObject:
    return delta_error(jvm(spark), name, *((spark._jsparkSession,) if with_session else ()))
