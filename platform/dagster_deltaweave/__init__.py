"""The Dagster side of deltaweave: Delta tables as assets, each materialization one merge.

The public names are here, and they are lazy: importing the package imports no pyspark and no
pandas, and nothing in it starts a JVM before a run asks for the session.

What starts a merge by itself: source partitions that land (`build_partition_sensor`), a source
Delta table that changes (`build_table_sensor`), and upstream assets. Dagster itself does the last:
give the asset an automation condition.

>>> @merge_asset(keys=["id"], automation_condition=AutomationCondition.eager())
... def customers(raw_customers: DataFrame) -> DataFrame: ...

It follows partition mappings, waits until no upstream is missing or in progress, and runs as long
as the sensor `default_automation_condition_sensor` is switched on. For partitions of time, `eager`
considers only the newest: where older ones are delivered again, use it
`.without(AutomationCondition.in_latest_time_window())`. Commits of other writers to a table reach
the assets downstream through `build_commit_observer`.
"""

from importlib.resources import as_file, files

import lazy_loader

# The names and their homes are in the stub beside this file, once for readers and type checkers.
# A file of its own for as long as it is read: the package may lie in a zip (`--py-files`).
with as_file(files(__name__) / "__init__.pyi") as _stub:
    __getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, str(_stub))
