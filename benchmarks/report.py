"""What a benchmark reports: a table for the screen, JSON, and a chart."""

from __future__ import annotations

import json
import os
import platform
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

from rich import box
from rich.table import Table

from deltaweave import __version__

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pyspark.sql import SparkSession
    from rich.console import RenderableType
    from typing_extensions import Self

R = TypeVar("R")


@dataclass(frozen=True)
class Report(ABC, Generic[R]):
    """The results of one benchmark, and what they depend on.

    It has nothing that identifies the machine.

    Attributes:
        benchmark: The name in JSON.
        settings: The benchmark's settings by name, such as scale and runs.
        environment: Versions and the machine's size, by name; none if the settings have them.
        results: What was measured.
    """

    benchmark: ClassVar[str]

    settings: Mapping[str, object]
    environment: Mapping[str, object]
    results: Sequence[R] = ()

    @abstractmethod
    def table(self) -> RenderableType:
        """Return the results for a screen."""

    @abstractmethod
    def content(self) -> Mapping[str, object]:
        """Return what the JSON has beside the settings and the environment."""

    def problem(self) -> str | None:
        """Return what is wrong with the results, or None."""
        return None

    def draw(self, figure: Figure) -> None:
        """Draw the results into an empty figure."""
        raise NotImplementedError(f"The benchmark {self.benchmark} has no chart.")

    def with_result(self, result: R) -> Self:
        """Return the report with one more result."""
        return replace(self, results=(*self.results, result))

    def write_json(self, path: Path) -> None:
        """Write all that was measured."""
        environment = {"environment": self.environment} if self.environment else {}
        content = {
            "benchmark": self.benchmark,
            **self.settings,
            **environment,
            **self.content(),
        }
        path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")

    def plot(self, path: Path) -> None:
        """Write the chart, in the format of the file's suffix."""
        from matplotlib.figure import Figure  # not pyplot, which wants a screen

        figure = Figure(figsize=(8, 4), layout="constrained")
        self.draw(figure)
        figure.savefig(path, dpi=120)


def screen_table(texts: Sequence[str], numbers: Sequence[str], caption: str | None = None) -> Table:
    """Return an empty table for a screen of 80 characters, with columns of texts, then numbers."""
    table = Table(box=box.SIMPLE, padding=0, caption=caption, caption_justify="left")
    for heading in texts:
        table.add_column(heading, vertical="bottom")
    for heading in numbers:
        table.add_column(heading, justify="right", vertical="bottom")
    return table


def cell(number: float | None) -> str:
    """Return a number for a table, with two digits; `-` if there is none."""
    return "-" if number is None else f"{number:.2f}"


def environment_of(spark: SparkSession) -> dict[str, object]:
    """Return versions and the machine's size, by name."""
    jvm = spark.sparkContext._jvm
    assert jvm is not None, "a session has a JVM"
    return {
        "deltaweave": __version__,
        "spark": spark.version,
        "delta": version("delta-spark"),
        "java": jvm.java.lang.System.getProperty("java.version"),
        **machine(),
        "spark_master": spark.sparkContext.master,
        "driver_memory": spark.sparkContext.getConf().get("spark.driver.memory"),
    }


def machine() -> dict[str, object]:
    """Return the version of Python and the machine's size, by name."""
    return {
        "python": platform.python_version(),
        "cpus": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
    }
