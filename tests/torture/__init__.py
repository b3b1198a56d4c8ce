"""Merges among rivals, kills and lost workers: bounded, drawn by a seed, and counted.

`make torture` runs them in full and prints their figures, which docs/guarantees.md holds; a plain
`pytest -m torture` runs a small number of each.
"""
