"""Keeps the view fresh when its base is rematerialized, because its rows stay the same."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dagster import AssetExecutionContext, AssetMaterialization

from dagster_deltaweave.dagster_private import get_input_data_version_tag
from dagster_deltaweave.tables import MergeOnReadDeclaration


def keep_view_fresh(
    context: AssetExecutionContext,
    declaration: MergeOnReadDeclaration,
    base_version: str,
    metadata: Mapping[str, Any],
) -> None:
    """Record the view again, as it was recorded last but with the base's new data version.

    Dagster shows an asset as stale if it was materialized with another version of an upstream. But
    the base's new version holds what the view read from the changes before, so the view's own data
    version stays. A view that was never materialized is left as it is.

    Args:
        context: The run that rematerialized the base.
        declaration: The declaration of the base.
        base_version: The data version that the base now gets.
        metadata: What is pending now.
    """
    event = context.instance.get_latest_materialization_event(declaration.view)
    before = event.asset_materialization if event else None
    if before is None or not before.tags:
        return
    of_base = get_input_data_version_tag(declaration.base)
    if before.tags.get(of_base, base_version) == base_version:
        return
    # Without a run, because the run that merges materializes only the base.
    context.instance.report_runless_asset_event(
        AssetMaterialization(
            asset_key=declaration.view,
            description="The base was rematerialized: the rows are as they were.",
            metadata=metadata,
            tags={**before.tags, of_base: base_version},
        )
    )
