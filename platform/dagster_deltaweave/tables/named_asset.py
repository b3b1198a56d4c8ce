"""Names the asset of a table: by its definition, its spec, or its key alone."""

# No `from __future__ import annotations`: the functions of checks are annotated with these types.

import re
from collections.abc import Iterator, Mapping, Set, ValuesView
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import TYPE_CHECKING, Any, TypeAlias, get_args

from dagster import (
    AssetChecksDefinition,
    AssetKey,
    AssetsDefinition,
    AssetSpec,
    DagsterInvalidDefinitionError,
    OpDefinition,
    OpExecutionContext,
    ResourceDefinition,
)

from dagster_deltaweave.dagster_private import STUB
from dagster_deltaweave.tables.declaration import MergeOnReadDeclaration, TableLocation
from dagster_deltaweave.tables.locator import (
    TableLocator,
    graph_of_location,
    graph_of_run,
    run_locator,
)
from dagster_deltaweave.tables.metadata_declarations import table_declaration, table_location
from deltaweave.errors import NOTHING_DONE, StatementError

if TYPE_CHECKING:
    from deltaweave import Table

AssetOrKey: TypeAlias = AssetsDefinition | AssetSpec | AssetKey | str
"""The asset of a table, also an external one: its definition or spec, or its key."""


class MergeOnReadAssets(list[AssetsDefinition]):
    """The three assets of a merge-on-read table.

    It is a list, so that Dagster's loaders find the assets in a module:
    `Definitions(assets=[*orders])`.

    Attributes:
        changes: The appended change events.
        base: The table into which they are merged.
        view: The rows of the base with all changes.
    """

    def __init__(
        self, changes: AssetsDefinition, base: AssetsDefinition, view: AssetsDefinition
    ) -> None:
        super().__init__([changes, base, view])
        self.changes, self.base, self.view = changes, base, view

    @property
    def declaration(self) -> MergeOnReadDeclaration:
        """The declaration of the view."""
        key = self.view.key
        found = table_declaration(self.view.metadata_by_key[key], asset=key.to_user_string())
        assert isinstance(found, MergeOnReadDeclaration)
        return found

    @property
    def io_manager_key(self) -> str:
        """The resource key of the IO manager that stores them."""
        return self.changes.get_io_manager_key_for_asset_key(self.changes.key)


def one_or_more(assets: Any, kinds: tuple[Any, ...], of: str, wanted: str) -> list[Any]:
    """Return a builder's argument as a list, whether it is a list or one element."""
    if isinstance(assets, kinds) and not isinstance(assets, AssetChecksDefinition):
        return [assets]
    # Names are sequences too, and keys, specs and selections are tuples.
    if type(assets) is not tuple and not isinstance(assets, (list, Set, ValuesView, Iterator)):
        raise DagsterInvalidDefinitionError(
            f"{of}: it takes {wanted}, one or a list, and got {type(assets).__name__}."
        )
    listed = [each for some in assets for each in one_or_more(some, kinds, of, wanted)]
    if not listed:
        raise DagsterInvalidDefinitionError(
            f"{of}: its list of assets is empty, so it would do nothing. Name at least one asset, "
            "or leave it out."
        )
    return listed


def merge_on_read_tables(tables: Any, of: str) -> list[MergeOnReadAssets]:
    """Return the merge-on-read tables that a builder got, one or several."""
    return one_or_more(tables, (MergeOnReadAssets,), of, "what @merge_on_read_asset returns")


@dataclass(frozen=True)
class NamedAsset:
    """A table's asset, as far as it is known before a run.

    Attributes:
        key: The key of its definition; a loaded asset may have got a prefix.
        metadata: The metadata of its definition; None if only the key is given.
        pool: The pool of its op; None without a pool or a known op (of a spec, key or graph).
        is_partitioned: Whether the asset has partitions; None if only the key is given.
        resource_defs: The IO manager and what it needs, if they are bound to the definition.
        is_manager_given: Whether the caller named the IO manager; it may differ from the asset's.
    """

    key: AssetKey
    metadata: Mapping[str, Any] | None
    io_manager_key: str
    pool: str | None = None
    is_partitioned: bool | None = None
    resource_defs: Mapping[str, ResourceDefinition] = field(default_factory=dict)
    is_manager_given: bool = False

    @classmethod
    def each_of(cls, assets: Any, of: str, io_manager_key: str | None = None) -> "list[NamedAsset]":
        """Return the assets that a builder got, each once; for a multi-asset, each of its assets.

        For what `@merge_on_read_asset` returns, they are those of its two tables.

        Raises:
            DagsterInvalidDefinitionError: No asset is given, or an element is not an asset.
        """
        kinds = (*get_args(AssetOrKey), MergeOnReadAssets, cls)
        given = one_or_more(assets, kinds, of, "definitions, specs or keys of assets")
        by_key: dict[AssetKey, NamedAsset] = {}
        for each in given:
            for named in cls._by_manager(each, io_manager_key):
                by_key.setdefault(named.key, named)
        return list(by_key.values())

    @classmethod
    def of(cls, asset: Any, io_manager_key: str | None = None) -> "NamedAsset":
        """Return the asset that a builder got alone."""
        [named] = cls._by_manager(asset, io_manager_key)
        return named

    @classmethod
    def _by_manager(cls, asset: Any, manager: str | None) -> "Iterator[NamedAsset]":
        for each in cls._each_in(asset, manager):
            yield each if manager is None else replace(each, is_manager_given=True)

    @classmethod
    def _each_in(cls, asset: Any, manager: str | None) -> "Iterator[NamedAsset]":
        if isinstance(asset, NamedAsset):
            name = manager or asset.io_manager_key
            is_own = name == asset.io_manager_key
            yield asset if is_own else replace(asset, io_manager_key=name, resource_defs={})
        elif isinstance(asset, MergeOnReadAssets):
            for each in (asset.changes, asset.base):
                yield from cls._each_in(each, manager)
        elif isinstance(asset, AssetsDefinition):
            node = asset.node_def if asset.is_executable else None
            pool = node.pool if isinstance(node, OpDefinition) else None
            for key, spec in sorted(asset.specs_by_key.items()):
                name = manager or asset.get_io_manager_key_for_asset_key(key)
                bound = bound_resources(asset, name)
                is_partitioned = spec.partitions_def is not None
                yield cls(key, spec.metadata, name, pool, is_partitioned, bound)
        elif isinstance(asset, AssetSpec):
            own = asset.metadata.get("dagster/io_manager_key", "io_manager")
            is_partitioned = asset.partitions_def is not None
            yield cls(asset.key, asset.metadata, manager or own, None, is_partitioned)
        else:
            key = AssetKey.from_user_string(asset) if isinstance(asset, str) else asset
            yield cls(key, None, manager or "io_manager")

    @property
    def name(self) -> str:
        """The key as Dagster spells it."""
        return self.key.to_user_string()

    @property
    def identifier(self) -> str:
        """The key in the characters that names of ops may have; other keys may give it, too."""
        return "__".join(re.sub(r"[^A-Za-z0-9_]", "_", part) for part in self.key.path)

    @property
    def unique_identifier(self) -> str:
        """The identifier if only this key is read from it; otherwise with a digest of the key."""
        is_exact = self.identifier.split("__") == list(self.key.path)
        return self.identifier if is_exact else self.digested_identifier

    @property
    def digested_identifier(self) -> str:
        """The identifier with a digest of the key, so that no other key gives it."""
        return f"{self.identifier}_{sha256(self.name.encode()).hexdigest()[:8]}"

    def declared_location(self, operation: str) -> TableLocation:
        """Return where the table is, or how it is written; nothing if only the key is given.

        Raises:
            StatementError: The metadata contradicts itself, or the asset is the view of a
                merge-on-read table, which has no table.
        """
        return _location_of(self.metadata or {}, self.key, operation)

    def table(self, context: OpExecutionContext, key: AssetKey, operation: str) -> "Table":
        """Return the asset's table, by the key and the IO manager that the asset has in a run.

        Raises:
            StatementError: As in `locator`, or the asset has no table of its own.
        """
        tables, metadata = self.locator(context, key, operation), self.metadata
        if metadata is None:
            graph = graph_of_run(context)
            metadata = graph.get(key).metadata if graph.has(key) else {}
        return tables.table(key, _location_of(metadata, key, operation))

    def locator(self, context: OpExecutionContext, key: AssetKey, operation: str) -> TableLocator:
        """Return the locator of the IO manager that stores the asset in a run.

        Raises:
            StatementError: As in `check_is_loaded`. Or another IO manager stores the asset than the
                one that the op requires, and the caller did not name it.
        """
        self.check_is_loaded(context, key, operation)
        graph, own = graph_of_run(context), self.io_manager_key
        if graph.has(key) and STUB not in graph.get(key).metadata:
            own = graph.get(key).io_manager_key
        if own != self.io_manager_key and not self.is_manager_given:
            raise StatementError(
                f"the IO manager {own} stores the asset, and not {self.io_manager_key}.",
                table=key.to_user_string(),
                operation=operation,
                state=NOTHING_DONE,
                hint=f"Name the asset by its definition, or give io_manager_key={own!r}.",
            )
        return run_locator(context.resources, self.io_manager_key)

    def check_is_loaded(self, context: OpExecutionContext, key: AssetKey, operation: str) -> None:
        """Refuse a key that no asset of the code location has, or only under a prefix.

        Otherwise a table at that key would be taken for the asset's. A key that is only named, as
        an upstream or by a check, may be that of another code location's asset. A run outside of a
        code location knows only some assets.

        Raises:
            StatementError: The code location has no such asset.
        """
        graph, is_whole = graph_of_run(context), graph_of_location(context) is not None
        keys = graph.get_all_asset_keys()
        loaded = {each for each in keys if STUB not in graph.get(each).metadata}
        alike = sorted(each.to_user_string() for each in loaded if each.path[-1] == key.path[-1])
        is_elsewhere = key in keys and (self.metadata is None or not alike)
        if key in loaded or is_elsewhere or not (is_whole or alike):
            return
        name = key.to_user_string()
        raise StatementError(
            f"there is no asset {name} in this code location, and no table of it.",
            table=name,
            operation=operation,
            state=NOTHING_DONE,
            hint="Name the definitions as they are loaded, with their prefixes"
            + (f": there is {', '.join(alike)}." if alike else "."),
        )


def _location_of(metadata: Mapping[str, Any], key: AssetKey, operation: str) -> TableLocation:
    name = key.to_user_string()
    location = table_location(metadata, asset=name)
    if isinstance(location, MergeOnReadDeclaration) and location.part == "view":
        raise StatementError(
            "the view of a merge-on-read table has no table of its own.",
            table=name,
            operation=operation,
            hint=f"Its tables are those of {location.base.to_user_string()} and "
            f"{location.changes.to_user_string()}.",
        )
    return location


def bound_resources(asset: AssetsDefinition, name: str) -> dict[str, ResourceDefinition]:
    """Return a resource and those that it needs, as far as they are bound to the definition."""
    bound, left = asset.resource_defs, [name]
    needed: dict[str, ResourceDefinition] = {}
    while left:
        name = left.pop()
        if name in bound and name not in needed:
            needed[name] = bound[name]
            left += bound[name].get_required_resource_keys(bound)
    return needed
