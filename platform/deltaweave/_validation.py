"""Checks of arguments, options of them, counts in messages, and a yes or no (`Verdict`)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from urllib.parse import parse_qsl

from deltaweave.errors import NOTHING_DONE, StatementError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_Options = TypeVar("_Options", bound="DataclassInstance")


def choice_problem(name: str, given: object, known: Iterable[object]) -> str | None:
    """Describe what is wrong with an argument that must be a known word; None if it is one.

    >>> choice_problem("mode", "apend", ["append", "overwrite"])
    "mode is 'apend'; known are append, overwrite."
    """
    known = list(known)
    if given in known:
        return None
    return f"{name} is {given!r}; known are {', '.join(map(str, known))}."


def check_choice(
    name: str, given: object, known: Iterable[object], *, table: str | None, operation: str
) -> None:
    """Raise a StatementError if an argument is not a known word."""
    problem = choice_problem(name, given, known)
    if problem is not None:
        raise StatementError(problem, table=table, operation=operation)


def options_of(kind: type[_Options], arguments: Mapping[str, Any]) -> _Options:
    """Build options, a dataclass, from a function's arguments of the same names (`locals()`)."""
    return kind(**{each.name: arguments[each.name] for each in fields(kind)})


def keys_problem(keys: object) -> str | None:
    """Describe what is wrong with the key columns of change events; None if nothing is."""
    if isinstance(keys, str) or not keys:
        return "keys is a list of one or more columns."
    return None


def counted(count: int, one: str, many: str | None = None) -> str:
    """Return a count and its noun.

    >>> counted(1, "row"), counted(1897, "row"), counted(0, "batch is", "batches are")
    ('1 row', '1,897 rows', '0 batches are')

    By default, the plural is the singular with an s at the end.
    """
    return f"{count:,} {one if count == 1 else many or f'{one}s'}"


# A URI alone, or quoted in SQL as in delta.`s3://bucket/orders`: scheme, slashes, authority, rest.
_URI = re.compile(r"(?:^|`)\s*((?:[A-Za-z][A-Za-z0-9+.-]+:)+)(/+)([^/?#`]*)([^`]*)")

# In abfss://container@account/…, the part before the @ is no user.
_CONTAINER_FIRST = frozenset({"abfs:", "abfss:", "wasb:", "wasbs:"})
# Names of buckets have no colon, so the part after one is no port.
_BUCKETS = frozenset({"s3:", "s3a:", "s3n:", "gs:"})

_SECRET_PARAMETER = re.compile(
    r"key|secret|token|passw|pwd|signature|^sig$|^sas|credential(?!_kind)", re.IGNORECASE
)


def check_given_location(location: str | Path, *, operation: str) -> None:
    """Refuse a location that is empty, or that holds credentials.

    Without a location, another one would be taken silently: a default, or the root of the disk.

    The location is a path, a URI, or SQL with URIs in back quotes.
    """
    if not str(location).strip():
        raise StatementError(
            "a location is empty.",
            operation=operation,
            state=NOTHING_DONE,
            hint="Give a path or a URI. Is a variable of the environment empty?",
        )
    refuse_credentials(location, operation=operation)


def refuse_credentials(location: str | Path, *, operation: str = "opening") -> None:
    """Refuse a location that holds credentials: descriptions, logs and metadata would show them.

    It refuses user information before a host or bucket (`s3://KEY:SECRET@bucket/orders`) and
    parameters that are named like a secret (`?sig=…`). A path without a scheme is never refused,
    nor is the container of `abfss://container@account/orders`.

    The location is a path, a URI, or SQL with URIs in back quotes.
    """
    for scheme, slashes, authority, rest in _URI.findall(str(location)):
        if _names_user(scheme.lower(), slashes, authority):
            what = "user information"
        elif _has_secret_parameter(rest):
            what = "a parameter with a secret"
        else:
            continue
        raise StatementError(
            f"its location holds credentials ({what}), which logs and metadata would show.",
            table=_without_credentials(scheme, slashes, authority + rest),
            operation=operation,
            state=NOTHING_DONE,
            hint="Remove them, and set them by the environment or by Spark's configuration "
            "of the store. Change them where this location was logged or shared.",
        )


def _names_user(scheme: str, slashes: str, authority: str) -> bool:
    if scheme == "file:" and slashes != "//":
        return False  # a local path: it has no authority
    before, at, _ = authority.rpartition("@")
    if at:
        # With one slash it is a path, and an @ may be part of a name.
        return ":" in before or (slashes == "//" and scheme not in _CONTAINER_FIRST)
    if slashes != "//":
        return False
    # A secret may contain a slash, where the authority seems to end.
    _, colon, port = authority.partition(":")
    is_port = port.isdecimal() and scheme not in _BUCKETS
    return bool(colon) and not is_port and not authority.startswith("[")


def _has_secret_parameter(rest: str) -> bool:
    _, _, query = rest.partition("?")
    parameters = parse_qsl(query.partition("#")[0], keep_blank_values=True)
    return any(_SECRET_PARAMETER.search(name) or "@" in value for name, value in parameters)


def _without_credentials(scheme: str, slashes: str, rest: str) -> str:
    path, question_mark, _ = rest.partition("?")
    # A secret contains no plain @.
    hidden, at, visible = path.rpartition("@")
    if not at and ":" in path:
        visible = ""
    return (
        f"{scheme}{slashes}{'…@' if hidden else ''}{visible or '…'}{'?…' if question_mark else ''}"
    )


class Verdict(NamedTuple):
    """A yes, or a no with its reason.

    Attributes:
        ok: Whether it may be done.
        reason: Why it may not be done; empty if it may.
    """

    ok: bool
    reason: str = ""


YES = Verdict(True)


def no(reason: str) -> Verdict:
    """Return the verdict that something may not be done, for a reason."""
    return Verdict(False, reason)
