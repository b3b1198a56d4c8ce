"""The Dagster side of deltaweave: Delta tables as assets, each materialization one merge.

The public names are here, and they are lazy: importing the package imports neither pyspark nor
pandas, and nothing in it starts a JVM before a run asks for the session.

A merge can start by itself when source partitions land (`build_partition_sensor`), when a source
Delta table changes (`build_table_sensor`), and when upstream assets change. For the last, Dagster
needs only an automation condition of the asset:

>>> @merge_asset(keys=["id"], automation_condition=AutomationCondition.eager())
... def customers(raw_customers: DataFrame) -> DataFrame: ...

The condition follows partition mappings, waits until no upstream is missing or in progress, and
works as long as the sensor `default_automation_condition_sensor` is switched on. For time
partitions, `eager` considers only the newest. If older ones may be delivered again, use it
`.without(AutomationCondition.in_latest_time_window())`. Commits of other writers to a table reach
the assets downstream through `build_commit_observer`.
"""

from importlib.resources import as_file, files

import lazy_loader
from dagster_shared.libraries import DagsterLibraryRegistry

from deltaweave import __version__

# The stub next to this file says which module each name is in, for this code and type checkers.
# `as_file` extracts the stub if the package is in a zip (`--py-files`).
with as_file(files(__name__) / "__init__.pyi") as _stub:
    __getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, str(_stub))

# Dagster's UI lists it with its release beside Dagster's own libraries.
DagsterLibraryRegistry.register("deltaweave", __version__, is_dagster_package=False)
