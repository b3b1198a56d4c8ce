"""The places in which assets keep data: directories, and tables of a catalog."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from dagster import AssetKey

from dagster_deltaweave.dagster_private import AssetGraph
from dagster_deltaweave.storage import same_place
from dagster_deltaweave.tables.declaration import (
    MergeOnReadDeclaration,
    TableDeclaration,
    TablePlace,
)
from dagster_deltaweave.tables.metadata_declarations import table_declaration, table_place
from deltaweave.errors import DeltaweaveError, StatementError
from deltaweave.identifiers import is_path

PathOf = Callable[[AssetKey, TablePlace | None], str]
"""Gives the path or catalog name of an asset's table, by its key and declaration."""

NameOf = Callable[[str], str]
"""Gives the full name of a table of a catalog, equal for all spellings of its name."""


@dataclass(frozen=True)
class Place:
    """A directory, or a table of a catalog, in which an asset keeps data.

    Attributes:
        asset: The asset.
        path: The directory, or the table's full name; a name does not say in which directory the
            table is.
        is_declared: Whether the user declared it: two assets may share a table on purpose, but no
            asset may share the table of a merge-on-read asset.
        is_merged_on_read: Whether the asset is part of a merge-on-read table.
        is_name: Whether it is the table of a catalog.
        is_plain: Whether the asset declares nothing, so that it need not have a table.
    """

    asset: AssetKey
    path: str
    is_declared: bool
    is_merged_on_read: bool = False
    is_name: bool = False
    is_plain: bool = False

    @cached_property
    def where(self) -> str:
        """The path as it is compared: equal for all spellings, and with links followed."""
        return self.path if self.is_name else same_place(self.path)


def places_of_assets(
    graph: AssetGraph, asset: AssetKey, path_of: PathOf, full_name: NameOf
) -> Iterator[Place]:
    """Yield the places of assets with the same IO manager, and of assets that declare a table."""
    own_manager = graph.get(asset).io_manager_key
    for key in graph.materializable_asset_keys:
        node = graph.get(key)
        is_ours = node.io_manager_key == own_manager
        declaration = declaration_in(node.metadata, key)
        if declaration is not None:
            yield from places_of(key, declaration, path_of if is_ours else None, full_name)
        elif is_ours and (path := _plain_path(key, node.metadata, path_of)):
            yield Place(key, path, False, is_plain=True)


def places_of(
    key: AssetKey, declaration: TableDeclaration, path_of: PathOf | None, full_name: NameOf
) -> Iterator[Place]:
    """Yield the places of one asset; without `path_of`, those that it declares itself."""
    for path, is_declared in _paths(key, declaration, path_of):
        if is_path(path):
            is_merged_on_read = isinstance(declaration, MergeOnReadDeclaration)
            yield Place(key, path, is_declared, is_merged_on_read)
        else:
            try:
                name = full_name(path)
            except DeltaweaveError:
                continue  # it is no name: that asset's own runs report the error
            yield Place(key, name, is_declared, is_name=True)


def _plain_path(key: AssetKey, metadata: Mapping[str, Any], path_of: PathOf) -> str | None:
    """Return the path of the table of an asset that declares nothing, if it has one."""
    try:
        path = path_of(key, table_place(metadata, asset=key.to_user_string()))
    except StatementError:
        return None  # that asset's own runs report the error
    return path if is_path(path) else None


def places_of_base(declaration: TableDeclaration | None, path_of: PathOf) -> Iterator[Place]:
    """Yield the place of the base that a run of its changes creates, even outside the graph."""
    if isinstance(declaration, MergeOnReadDeclaration) and declaration.part == "changes":
        path = path_of(declaration.base, declaration.of_part("base"))
        if is_path(path):
            yield Place(declaration.base, path, False, True)


def _paths(
    key: AssetKey, declaration: TableDeclaration, path_of: PathOf | None
) -> Iterator[tuple[str, bool]]:
    part = declaration.part if isinstance(declaration, MergeOnReadDeclaration) else None
    if part == "view":
        return
    if declaration.table is not None:
        path = declaration.table
    elif path_of is None and not (declaration.namespace.schema and declaration.namespace.catalog):
        return  # only its IO manager knows
    else:
        try:
            path = (path_of or _by_metadata)(key, declaration)
        except StatementError:
            return  # that asset's own runs report the error
    yield path, declaration.table is not None and part is None
    if isinstance(declaration, MergeOnReadDeclaration) and part == "changes":
        yield declaration.checkpoint or f"{path}_checkpoint", False


def _by_metadata(key: AssetKey, place: TablePlace | None) -> str:
    assert place is not None
    return place.namespace.name_of(key)


def declaration_in(metadata: Mapping[str, Any], key: AssetKey) -> TableDeclaration | None:
    """Return the declaration in an asset's metadata; None if there is no valid one."""
    try:
        return table_declaration(metadata, asset=key.to_user_string())
    except StatementError:
        return None  # that asset's own runs report the error
