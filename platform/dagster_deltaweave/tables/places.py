"""Where assets keep data, and which places are refused: no table is inside another.

VACUUM deletes all files under a table's path that the table does not know, including those of a
table inside it. A key whose parts lead elsewhere would put its table outside of the root.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from dagster import AssetKey, OutputContext

from dagster_deltaweave.dagster_private import AssetGraph, CheckError
from dagster_deltaweave.storage import local_path, same_place
from dagster_deltaweave.tables.declaration import (
    MergeOnReadDeclaration,
    TableDeclaration,
    TablePlace,
    locating_error,
)
from dagster_deltaweave.tables.metadata_declarations import table_declaration, table_place
from deltaweave.errors import DeltaweaveError, StatementError
from deltaweave.identifiers import is_path

PathOf = Callable[[AssetKey, TablePlace | None], str]
"""Gives the path or catalog name of an asset's table, by its key and declaration."""

NameOf = Callable[[str], str]
"""Gives the full name of a table of a catalog, equal for all spellings of its name."""


@dataclass(frozen=True)
class DataPlace:
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
) -> Iterator[DataPlace]:
    """Yield the places of assets with the same IO manager, and of assets that declare a table."""
    own_manager = graph.get(asset).io_manager_key
    for key in graph.materializable_asset_keys:
        node = graph.get(key)
        is_ours = node.io_manager_key == own_manager
        declaration = declaration_in(node.metadata, key)
        if declaration is not None:
            yield from places_of(key, declaration, path_of if is_ours else None, full_name)
        elif is_ours and (path := _plain_path(key, node.metadata, path_of)):
            yield DataPlace(key, path, False, is_plain=True)


def places_of(
    key: AssetKey, declaration: TableDeclaration, path_of: PathOf | None, full_name: NameOf
) -> Iterator[DataPlace]:
    """Yield the places of one asset; without `path_of`, those that it declares itself."""
    for path, is_declared in _paths(key, declaration, path_of):
        if is_path(path):
            is_merged_on_read = isinstance(declaration, MergeOnReadDeclaration)
            yield DataPlace(key, path, is_declared, is_merged_on_read)
        else:
            try:
                name = full_name(path)
            except DeltaweaveError:
                continue  # it is no name: that asset's own runs report the error
            yield DataPlace(key, name, is_declared, is_name=True)


def _plain_path(key: AssetKey, metadata: Mapping[str, Any], path_of: PathOf) -> str | None:
    """Return the path of the table of an asset that declares nothing, if it has one."""
    try:
        path = path_of(key, table_place(metadata, asset=key.to_user_string()))
    except StatementError:
        return None  # that asset's own runs report the error
    return path if is_path(path) else None


def places_of_base(declaration: TableDeclaration | None, path_of: PathOf) -> Iterator[DataPlace]:
    """Yield the place of the base that a run of its changes creates, even outside the graph."""
    if isinstance(declaration, MergeOnReadDeclaration) and declaration.part == "changes":
        path = path_of(declaration.base, declaration.of_part("base"))
        if is_path(path):
            yield DataPlace(declaration.base, path, False, True)


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


_ANOTHER_KEY = (
    "Give one of the two assets another key, or a table of its own elsewhere. VACUUM of the outer "
    "table deletes the files of the inner one."
)
_ANOTHER_SCHEMA = (
    "Give one of the two assets another schema in its metadata, or another key. If they share the "
    "table on purpose, declare it for both by table=…."
)


def problem_of_table_key(key: AssetKey) -> str | None:
    """Return why a table cannot be at this key under a root; None if it can."""
    for part in "/".join(key.path).split("/"):
        if part in ("", ".", ".."):
            return f"{part!r} in its key leads out of the key's own directory."
        if part.lower() == "_delta_log":
            return "_delta_log in its key is the log of another table."
        if any(character in "`\\" or ord(character) < 32 for character in part):
            return f"{part!r} in its key is not a valid directory name."
    return None


def path_under(root: str, key: AssetKey) -> str:
    """Return the path of the table at a key under a root.

    Raises:
        StatementError: The key leads elsewhere.
    """
    problem = problem_of_table_key(key)
    if problem is not None:
        raise locating_error(
            key.to_user_string(),
            problem,
            "Give the asset another key, or its table a path of its own.",
        )
    return "/".join([root.rstrip("/"), *key.path])


def check_parents(path_or_name: str, location: str, is_table: Callable[[str], bool]) -> None:
    """Refuse to create a table inside an existing table, whoever owns it.

    Args:
        path_or_name: The table.
        location: Where it will be created.
        is_table: Whether there is a table at a path.

    Raises:
        StatementError: A directory above it is a table.
    """
    hint = _ANOTHER_KEY if is_path(path_or_name) else _ANOTHER_SCHEMA
    for parent in parents(location):
        if is_table(parent):
            raise _misplaced("its table would be inside the one", path_or_name, parent, hint)


def parents(location: str) -> Iterator[str]:
    """Yield the directories above a location, from the nearest to the bucket or to one below `/`.

    >>> list(parents("s3a://bucket/sales/orders")), list(parents("file:/lake/orders"))
    (['s3a://bucket/sales', 's3a://bucket'], ['file:/lake'])
    """
    start, slash, path = location.rstrip("/").rpartition("://")
    names = path.split("/")
    highest = 1 if slash and names[0] else 2
    for number in range(len(names) - 1, highest - 1, -1):
        yield start + slash + "/".join(names[:number])


def check_places(
    context: OutputContext,
    path_of: PathOf,
    full_name: NameOf,
    location: str,
    declaration: TableDeclaration,
    *,
    is_made: bool,
    is_table: Callable[[str], bool],
) -> None:
    """Refuse a table that is inside another asset's table, around it, or in its place.

    If an earlier release created a table in such a place, or two assets write one table at a path,
    it is still written, with a warning. A table of a schema that is that of another asset, too, is
    never written: keys with other prefixes give one name there. Where two assets share a table on
    purpose, both declare it by `table=…`. An asset that declares nothing shares with none, and is
    in nobody's way before it has a table: it may never have one.

    Args:
        context: The context of the asset's output.
        path_of: Gives the locations of tables.
        full_name: Gives the full names of tables.
        location: Where the asset's table is, or will be created.
        declaration: How this run writes it.
        is_made: Whether the asset's table already exists.
        is_table: Whether there is a table in a directory.

    Raises:
        StatementError: Another asset's data is at, in or around its path.
    """
    graph = _graph(context)
    key = context.asset_key
    places = list(places_of_assets(graph, key, path_of, full_name))
    own = list(places_of(key, declaration, path_of, full_name))
    own += [replace(place, path=location, is_name=False) for place in own if place.is_name]
    own += places_of_base(declaration, path_of)
    is_plain = declaration_in(graph.get(key).metadata, key) is None
    for other in places:
        if other.asset == key:
            continue
        for place in own:
            if place.asset == other.asset:
                continue
            problem = _problem(place, other)
            if problem is None or (other.is_plain and not is_table(other.path)):
                continue
            name = other.asset.to_user_string()
            hint = _ANOTHER_SCHEMA if place.is_name else _ANOTHER_KEY
            error = _misplaced(f"{problem} {name},", place.path, other.path, hint)
            is_taken = _is_same(place.where, other.where) and not _is_shared(place, other)
            if is_plain or is_taken or not is_made:
                raise error
            context.log.warning(f"{error}\nIts table is there already, so it is written.")


def _is_shared(place: DataPlace, other: DataPlace) -> bool:
    """Return whether two assets write rows into one table, and neither is merged on read."""
    is_merged_on_read = place.is_merged_on_read or other.is_merged_on_read
    return place.where == other.where and not is_merged_on_read and not place.is_name


def _misplaced(problem: str, path: str, other: str, hint: str) -> StatementError:
    return StatementError(f"{problem} at {other}.", table=path, operation="locating", hint=hint)


def _problem(place: DataPlace, other: DataPlace) -> str | None:
    one, two = place.where, other.where
    if one == two:
        both = place.is_declared and other.is_declared
        return None if both else "its table would have the path of the table of"
    if _is_same(one, two):
        return "on this storage, which ignores case, its table would be that of"
    if one.startswith(f"{two}/"):
        return "its table would be inside the table of"
    return "its table would contain the table of" if two.startswith(f"{one}/") else None


def _is_same(one: str, other: str) -> bool:
    """Return whether two paths are one directory: on some disks, names may differ in case."""
    if one == other:
        return True
    if one.casefold() != other.casefold() or local_path(one) is None:
        return False
    try:
        return os.path.samefile(one, other)
    except OSError:
        return False  # one of them does not exist


def _graph(context: OutputContext) -> AssetGraph:
    """Return the assets of the code location; for a run outside of one, those of its job."""
    step = context.step_context
    try:
        return step.repository_def.asset_graph
    except CheckError:
        return step.job_def.asset_layer.asset_graph
