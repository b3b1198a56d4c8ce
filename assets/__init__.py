"""This deployment's tables, sensors and schedules; definitions.py wires them."""
