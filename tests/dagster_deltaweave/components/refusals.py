"""What Dagster says of YAML that it refuses."""

from __future__ import annotations


def all_messages(error: BaseException | None) -> str:
    """The messages of an error and of those that caused it, one below the other."""
    messages = []
    while error is not None:
        messages.append(str(error))
        error = error.__cause__
    return "\n".join(messages)
