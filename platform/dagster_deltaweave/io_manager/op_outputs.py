"""Outputs of ops that are no assets: between the ops of a graph asset, and in op jobs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dagster import (
    DagsterInvariantViolationError,
    FilesystemIOManager,
    InputContext,
    OutputContext,
)
from pyspark.sql import DataFrame

from deltaweave.errors import SourceError

if TYPE_CHECKING:
    from dagster import IOManager


class OpOutputs:
    """Keeps them as Dagster's default IO manager does, in files.

    A DataFrame of Spark cannot be written to such a file: it stays in the run's process, and so
    does a list, tuple or dict with one.
    """

    def __init__(self) -> None:
        self._frames: dict[tuple[str, ...], Any] = {}
        self._of_graphs: dict[tuple[str, str, str], Any] = {}

    def keep(self, context: OutputContext, value: object) -> None:
        """Keep an op's output for the ops that take it."""
        if _has_frame(value):
            self._frames[tuple(context.get_identifier())] = value
        else:
            self._files(context).handle_output(context, value)

    def keep_in_graph(self, context: OutputContext, value: object) -> None:
        """Keep what an op of a graph asset gives and is stored, for the other ops of the graph."""
        if len(context.step_context.node_handle.path) > 1:
            self._of_graphs[_place(context)] = value

    def in_graph(self, context: InputContext) -> tuple[Any, ...]:
        """The one output of an op of the same graph asset; none if it is another asset's table.

        Raises:
            SourceError: It was one of another process, or of the run that this one goes on from.
        """
        output = context.upstream_output
        if output is None:
            return ()
        try:
            own, place = context.step_context.node_handle.path, _place(output)
        except DagsterInvariantViolationError:  # no step of this run, or none at all: a notebook
            return ()
        if len(own) == 1 or place[1].split(".")[0] != own[0]:
            return ()
        if place not in self._of_graphs:
            raise _not_here(output)
        return (self._of_graphs[place],)

    def load(self, context: InputContext) -> Any:
        """Load the output that an op's input takes.

        Raises:
            SourceError: It was a DataFrame of another process.
        """
        output = context.upstream_output
        assert output is not None
        kept = self._frames.get(tuple(output.get_identifier()))
        if kept is not None:
            return kept
        try:
            return self._files(context).load_input(context)
        except FileNotFoundError as error:
            raise _not_here(output) from error

    def forget(self) -> None:
        """Let go of the DataFrames of a run that has ended."""
        self._frames.clear()
        self._of_graphs.clear()

    def _files(self, context: InputContext | OutputContext) -> IOManager:
        directory = context.step_context.instance.storage_directory()
        return FilesystemIOManager(base_dir=directory).create_io_manager(None)  # type: ignore[arg-type]


def _not_here(output: OutputContext) -> SourceError:
    return SourceError(
        f"the output {output.name} of the op {output.step_key} is not there: it stays in the "
        "process of the step that returned it.",
        operation="READ",
        state="This step wrote nothing.",
        hint="Run the job on the in-process executor, as a whole.",
    )


def _has_frame(value: object) -> bool:
    if isinstance(value, Mapping):
        return any(map(_has_frame, value.values()))
    if isinstance(value, (list, tuple)):
        return any(map(_has_frame, value))
    return isinstance(getattr(value, "rows", value), DataFrame)  # also such as Changes


def _place(output: OutputContext) -> tuple[str, str, str]:
    return output.run_id, output.step_key, output.name
