"""The merge engine: five phases, each of which takes plain values and returns plain values.

`run` runs the phases in order, and falls back on Spark; read it first. `explain` says what a merge
would do.

- `clauses`: what the resolved statement says of rows: which clause takes one, and its new values;
  names of added columns.
- `source`: the source, materialized where that is needed, and the keys that it holds.
- `prune`, `pairs`: the candidate files, and the pairs of matching rows.
- `strategies`, `backends`: how changes become files, and who finds and writes them.
- `commit`: the loop of runs and commits; `staged` is what it commits.
- `merge_run`: what every phase of one run needs to know, with settings and preconditions.
- `report`: the phases as they run, metrics and result.
- `tasks`: what executors run in Python.
- `limits`: the thresholds.
"""
