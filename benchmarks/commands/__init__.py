"""The commands of `python -m benchmarks`.

- `merge`, `peers`, `merge_on_read` and `limits`: the commands.
- `running`: what they share: options, checks, the session, progress and failures.
"""
