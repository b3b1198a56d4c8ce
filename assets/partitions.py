"""The partitions of the demo lake: they come into being as source partitions land."""

from __future__ import annotations

from dagster import DynamicPartitionsDefinition

web_returns_partitions = DynamicPartitionsDefinition(name="web_returns_partitions")
"""One for each directory under the landing directory of web_returns; names sort by arrival."""
