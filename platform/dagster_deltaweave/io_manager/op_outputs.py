"""Outputs of ops that are no assets: between the ops of a graph asset, and in op jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dagster import FilesystemIOManager, InputContext, OutputContext
from pyspark.sql import DataFrame

from deltaweave.errors import SourceError

if TYPE_CHECKING:
    from dagster import IOManager


class OpOutputs:
    """Keeps them as Dagster's default IO manager does, in files.

    A DataFrame of Spark cannot be written to such a file: it stays in the run's process.
    """

    def __init__(self) -> None:
        self._frames: dict[tuple[str, ...], DataFrame] = {}

    def keep(self, context: OutputContext, value: object) -> None:
        """Keep an op's output for the ops that take it."""
        if isinstance(value, DataFrame):
            self._frames[tuple(context.get_identifier())] = value
        else:
            self._files(context).handle_output(context, value)

    def load(self, context: InputContext) -> Any:
        """The output that an op's input takes.

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
            raise SourceError(
                f"the output {output.name} of the op {output.step_key} is not there: a DataFrame "
                "of Spark stays in the process of the step that returned it.",
                operation="READ",
                state="Nothing was written.",
                hint="Run the job on the in-process executor, as a whole.",
            ) from error

    def forget(self) -> None:
        """Let go of the DataFrames of a run that has ended."""
        self._frames.clear()

    def _files(self, context: InputContext | OutputContext) -> IOManager:
        directory = context.step_context.instance.storage_directory()
        return FilesystemIOManager(base_dir=directory).create_io_manager(None)  # type: ignore[arg-type]
