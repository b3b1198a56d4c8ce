"""The benchmarks' tables.

- `tables`: targets, sources and clones in the benchmarks' directory.
- `written_tables`: Delta tables that are written without Spark.
"""
