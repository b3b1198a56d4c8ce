"""The merge engine: five phases, each of which takes plain values and returns plain values.

`run` runs the phases in order; read it first. `explain` says what a merge would do.

- `statement`: what the resolved statement says of rows: which clause takes one, and its new values.
- `source`: the source, materialized where that is needed, and the keys that it holds.
- `find`: the touched files, by pruning and by one scan.
- `write`: the choice of a strategy, and the strategies side by side.
- `report`: metrics and result.
- `tasks`: what executors run in Python.
- `phases`, `columns`, `limits`: names and times of phases, names of added columns, thresholds.
"""
