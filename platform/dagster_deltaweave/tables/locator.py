"""Finds and opens the tables of assets, and refuses tables inside one another.

The name of a table in a schema is only the last part of its asset's key, so keys of two assets may
give one name: a table property says which asset created it. VACUUM deletes all files under a
table's path that the table does not know, so no table may be inside another.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from dagster import AssetKey, OutputContext

import deltaweave
from dagster_deltaweave.dagster_private import AssetGraph, CheckError
from dagster_deltaweave.storage import local_path, normalized_location
from dagster_deltaweave.tables.declaration import (
    NO_NAMESPACE,
    MergeOnReadDeclaration,
    Namespace,
    TableDeclaration,
    TableLocation,
    entry_value,
    locating_error,
)
from dagster_deltaweave.tables.metadata_declarations import (
    READ_METADATA_KEY,
    table_declaration,
    table_location,
)
from deltaweave.delta.jvm import parsed_expression
from deltaweave.errors import NOTHING_READ, DeltaweaveError, SourceError, StatementError
from deltaweave.identifiers import is_path, string_token

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from dagster_deltaweave.spark import SparkResource
    from deltaweave import MergeOnReadTable, Table


OWNER = "deltaweave.asset"
"""Property of a table that an asset created in its schema: the asset's key."""

Declaration = TypeVar("Declaration", bound=TableDeclaration)


def with_owner(declaration: Declaration, key: AssetKey) -> Declaration:
    """Add the asset that creates the table to the declaration's properties."""
    properties = {**(declaration.properties or {}), OWNER: key.to_user_string()}
    return replace(declaration, properties=properties)


def check_owner(table: Table, declaration: TableDeclaration) -> None:
    """Refuse to write a table that another asset created.

    Raises:
        StatementError: The table is another asset's.
    """
    own = (declaration.properties or {}).get(OWNER)
    if own is not None:
        check_is_of(table, own)


def check_is_of(table: Table, own: str) -> None:
    """Refuse a table that an asset with another key created."""
    owner = table.setting(OWNER)
    if owner in (None, own):
        return
    raise locating_error(
        table.path_or_name,
        f"it is the table of the asset {owner}, and not that of {own}: their keys give one name.",
        "Give one of the two assets another schema in its metadata, or another key. If they "
        "share the table on purpose, declare it for both by table=…. If the asset has a new key, "
        "under which nothing counts as applied that was applied under the old one, "
        f"say so: ALTER TABLE … SET TBLPROPERTIES ('{OWNER}' = {string_token(own)}).",
    )


@dataclass(frozen=True)
class TableLocator:
    """Finds the tables of assets.

    Attributes:
        root: Path or URI under which the tables are, each at its asset key.
        spark: The resource whose session opens tables; it is used only when a table is opened.
        namespace: The catalog and schema of the tables that have names, by default.
    """

    root: str
    spark: SparkResource
    namespace: Namespace = NO_NAMESPACE

    @property
    def session(self) -> SparkSession:
        """The session that opens the tables; started or found on first use."""
        return self.spark.session

    def table(self, key: AssetKey, location: TableLocation | None = None) -> Table:
        """Open the table of an asset: where it is declared, in its schema, or under the root.

        Raises:
            StatementError: There can be no table at its key or of its name. Or the default schema
                alone gives it a name, and the table of that name is another asset's.
        """
        path_or_name = self.path_or_name(key, location)  # before a session starts
        table = deltaweave.Table(self.session, path_or_name)
        if not self._is_named_for_it(location or TableLocation()) and table.exists():
            check_is_of(table, key.to_user_string())
        return table

    def path_or_name(self, key: AssetKey, location: TableLocation | None = None) -> str:
        """Return where the table of an asset is; this needs no session.

        Raises:
            StatementError: There can be no table at its key, or of its name.
        """
        declared = location or TableLocation()
        if declared.table:
            return declared.table
        if self.is_under_root(declared):
            return path_under(self.root, key)
        return declared.namespace.or_else(self.namespace).name_of(key)

    def is_known(self, location: TableLocation) -> bool:
        """Return whether the table is the asset's own, not one that the default schema gives it.

        An asset that declares neither a table nor how it is written may have none; keys of other
        assets may give the same name.
        """
        return isinstance(location, TableDeclaration) or self._is_named_for_it(location)

    def _is_named_for_it(self, location: TableLocation) -> bool:
        """Return whether the location is the asset's alone, not a name in the default schema."""
        return location.is_given or self.is_under_root(location)

    def is_under_root(self, location: TableLocation) -> bool:
        """Return whether the table is at its key under the root.

        Those of a merge-on-read asset always are: sensors and checks read their logs without Spark,
        and so without a catalog.
        """
        if location.table:
            return False
        namespace = location.namespace.or_else(self.namespace)
        return isinstance(location, MergeOnReadDeclaration) or not namespace.is_given


def run_locator(resources: object, io_manager_key: str) -> TableLocator:
    """Return the locator of a run: that of the IO manager among its resources.

    Raises:
        StatementError: The resource is not a `SparkDeltaIOManager`.
    """
    manager = getattr(resources, io_manager_key)
    locator = getattr(manager, "locator", None)
    if not isinstance(locator, TableLocator):
        raise locating_error(
            None,
            f"the resource {io_manager_key} is not a SparkDeltaIOManager but a "
            f"{type(manager).__name__}, which has no tables.",
            "Name the resource that has them, by io_manager_key=.",
        )
    return locator


WHERE = "deltaweave/where"
"""Metadata key of an input: a condition of key columns, for both the base and the changes."""


@dataclass(frozen=True)
class MergeOnReadLocations:
    """The locations of a merge-on-read table and its stream's checkpoint: paths or URIs."""

    base: str
    changes: str
    checkpoint: str


def merge_on_read_locations(
    tables: TableLocator, declaration: MergeOnReadDeclaration
) -> MergeOnReadLocations:
    """Return the locations, as declared or under the root at their keys; this needs no session."""
    base = tables.path_or_name(declaration.base, declaration.of_part("base"))
    changes = tables.path_or_name(declaration.changes, declaration.of_part("changes"))
    # Not in the changeset's directory, because a table is created in an empty directory.
    return MergeOnReadLocations(base, changes, declaration.checkpoint or f"{changes}_checkpoint")


def open_merge_on_read(
    tables: TableLocator, declaration: MergeOnReadDeclaration
) -> MergeOnReadTable:
    """Open the merge-on-read table in the session of the locator."""
    at = merge_on_read_locations(tables, declaration)
    return deltaweave.MergeOnReadTable(
        tables.session, at.base, changes=at.changes, **declaration.arguments
    )


def load_merge_on_read(
    tables: TableLocator, declaration: MergeOnReadDeclaration, metadata: Mapping[str, Any]
) -> DataFrame:
    """Read the rows of the view or of the base alone, lazily.

    Raises:
        SourceError: The input asks for touched or changed rows.
        StatementError: The condition uses other columns than keys.
    """
    if READ_METADATA_KEY in metadata:
        raise SourceError(
            f"{READ_METADATA_KEY} needs versions, and rows that are merged on read have none.",
            table=declaration.view.to_user_string(),
            operation="READ",
            state=NOTHING_READ,
            hint=f"Read its changes: {declaration.changes.to_user_string()} is an asset too.",
        )
    table = open_merge_on_read(tables, declaration)
    where = entry_value(metadata, WHERE)
    if declaration.part == "view":
        return table.read(where=where)
    rows = table.read_optimized()
    return rows if where is None else rows.where(parsed_expression(rows.sparkSession, where))


PathOf = Callable[[AssetKey, TableLocation | None], str]
"""Gives the path or catalog name of an asset's table, by its key and declaration."""


class TableNames(NamedTuple):
    """What the tables of an IO manager are called.

    Attributes:
        path_of: Gives the path or catalog name of an asset's table, by its key and declaration.
        full_name: Gives the full name of a table of a catalog, equal for all spellings of its name.
    """

    path_of: PathOf
    full_name: Callable[[str], str]


@dataclass(frozen=True)
class DataLocation:
    """A directory, or a table of a catalog, in which an asset keeps data.

    Attributes:
        path: The directory, or the table's full name; a name does not say in which directory the
            table is.
        is_declared: Whether the user declared the location: two assets may share a table on
            purpose, but no asset may share the table of a merge-on-read asset.
        is_merged_on_read: Whether the asset is part of a merge-on-read table.
        is_name: Whether the location is a table of a catalog.
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
        return self.path if self.is_name else normalized_location(self.path)


def locations_of_assets(
    graph: AssetGraph, asset: AssetKey, names: TableNames
) -> Iterator[DataLocation]:
    """Yield the locations of assets of one IO manager, and of assets that declare a table."""
    own_manager = graph.get(asset).io_manager_key
    for key in graph.materializable_asset_keys:
        node = graph.get(key)
        is_ours = node.io_manager_key == own_manager
        declaration = declaration_in(node.metadata, key)
        if declaration is not None:
            yield from locations_of(key, declaration, names, is_ours=is_ours)
        elif is_ours and (path := _plain_path(key, node.metadata, names.path_of)):
            yield DataLocation(key, path, False, is_plain=True)


def locations_of(
    key: AssetKey, declaration: TableDeclaration, names: TableNames, *, is_ours: bool = True
) -> Iterator[DataLocation]:
    """Yield the locations of one asset; of another IO manager, those that it declares itself."""
    for path, is_declared in _paths(key, declaration, names.path_of if is_ours else None):
        if is_path(path):
            is_merged_on_read = isinstance(declaration, MergeOnReadDeclaration)
            yield DataLocation(key, path, is_declared, is_merged_on_read)
        else:
            try:
                name = names.full_name(path)
            except DeltaweaveError:
                continue  # not a valid name: that asset's own runs report the error
            yield DataLocation(key, name, is_declared, is_name=True)


def _plain_path(key: AssetKey, metadata: Mapping[str, Any], path_of: PathOf) -> str | None:
    """Return the path of the table of an asset that declares nothing; None without a table."""
    try:
        path = path_of(key, table_location(metadata, asset=key.to_user_string()))
    except StatementError:
        return None  # that asset's own runs report the error
    return path if is_path(path) else None


def locations_of_base(
    declaration: TableDeclaration | None, path_of: PathOf
) -> Iterator[DataLocation]:
    """Yield the location of the base that a run of its changes creates, even outside the graph."""
    if isinstance(declaration, MergeOnReadDeclaration) and declaration.part == "changes":
        path = path_of(declaration.base, declaration.of_part("base"))
        if is_path(path):
            yield DataLocation(declaration.base, path, False, True)


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


def _by_metadata(key: AssetKey, location: TableLocation | None) -> str:
    assert location is not None
    return location.namespace.name_of(key)


def declaration_in(metadata: Mapping[str, Any], key: AssetKey) -> TableDeclaration | None:
    """Return the declaration in an asset's metadata; None without a valid one."""
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


def check_locations(
    context: OutputContext,
    declaration: TableDeclaration,
    names: TableNames,
    location: str,
    *,
    is_made: bool,
    is_table: Callable[[str], bool],
) -> None:
    """Refuse a table that is inside another asset's table, around it, or at its location.

    If an earlier release created a table at such a location, or two assets write one table at a
    path, it is still written, with a warning. In a schema, a table that is also another asset's is
    never written: keys with different prefixes give one name there. Two assets that share a table
    on purpose both declare it by `table=…`. An asset that declares nothing shares its table with no
    other, and conflicts with none before the table exists: it may never have one.

    Raises:
        StatementError: Another asset's data is at, in or around its path.
    """
    graph = graph_of_run(context.step_context)
    key = context.asset_key
    others = list(locations_of_assets(graph, key, names))
    own = list(locations_of(key, declaration, names))
    own += [replace(each, path=location, is_name=False) for each in own if each.is_name]
    own += locations_of_base(declaration, names.path_of)
    is_plain = declaration_in(graph.get(key).metadata, key) is None
    for other in others:
        if other.asset == key:
            continue
        for mine in own:
            if mine.asset == other.asset:
                continue
            problem = _overlap(mine, other)
            if problem is None or (other.is_plain and not is_table(other.path)):
                continue
            name = other.asset.to_user_string()
            hint = _ANOTHER_SCHEMA if mine.is_name else _ANOTHER_KEY
            error = _misplaced(f"{problem} {name},", mine.path, other.path, hint)
            is_taken = _is_same(mine.where, other.where) and not _is_shared(mine, other)
            if is_plain or is_taken or not is_made:
                raise error
            context.log.warning(f"{error}\nIts table is there already, so it is written.")


def _is_shared(mine: DataLocation, other: DataLocation) -> bool:
    """Return whether two assets write rows into one table, and neither is merged on read."""
    is_merged_on_read = mine.is_merged_on_read or other.is_merged_on_read
    return mine.where == other.where and not is_merged_on_read and not mine.is_name


def _misplaced(problem: str, path: str, other: str, hint: str) -> StatementError:
    return StatementError(f"{problem} at {other}.", table=path, operation="locating", hint=hint)


def _overlap(mine: DataLocation, other: DataLocation) -> str | None:
    one, two = mine.where, other.where
    if one == two:
        both = mine.is_declared and other.is_declared
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


def graph_of_run(context: Any) -> AssetGraph:
    """Return the assets of the code location; for a run outside of one, those of its job.

    `context` is that of a step or of its op.
    """
    graph = graph_of_location(context)
    if graph is None:
        graph = context.job_def.asset_layer.asset_graph
    return graph


def graph_of_location(context: Any) -> AssetGraph | None:
    """Return the assets of the run's code location; None for a run outside of one."""
    try:
        graph: AssetGraph = context.repository_def.asset_graph
    except CheckError:
        return None
    return graph
