"""Dagster components: assets that are declared in YAML.

- `merge_asset`: `MergeAssetComponent`, the YAML form of `@merge_asset`.
- `merge_sources`: the sources of its changes.
"""

from __future__ import annotations

from dagster_deltaweave.components.merge_asset import MergeAssetComponent

__all__ = ["MergeAssetComponent"]
