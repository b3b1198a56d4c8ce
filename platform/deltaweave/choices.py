"""Checks of arguments that must be one of a few words."""

from __future__ import annotations

from collections.abc import Iterable

from deltaweave.errors import StatementError


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
    """Raise a StatementError if an argument is not a known word.

    Args:
        name: The argument's name.
        given: Its value.
        known: The words.
        table: The table, for the error message.
        operation: The operation, for the error message.
    """
    problem = choice_problem(name, given, known)
    if problem is not None:
        raise StatementError(problem, table=table, operation=operation)
