"""The merge engine: one module per phase, read in the order the data flows (see command)."""
