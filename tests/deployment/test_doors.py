"""What is in a folder of the platform is imported through the folder, and by nothing else."""

from __future__ import annotations

import grimp
import pytest

ROOTS = ("deltaweave", "dagster_deltaweave", "resources", "assets", "benchmarks")
PLATFORM = ("deltaweave", "dagster_deltaweave")

# Folders that export nothing: code outside imports their modules and folders. A new folder is none
# of them, so that it has a door.
OPEN = {
    *PLATFORM,
    "deltaweave.changes",
    "deltaweave.delta",
    "deltaweave.engine",
    "deltaweave.warm_driver",
}

# The actions of a log, which most of `delta` reads, and some of the engine.
WITHOUT_DOOR = {"deltaweave.delta.log.actions"}

GRAPH = grimp.build_graph(*ROOTS, cache_dir=None)
FOLDERS = sorted(
    each for each in GRAPH.modules if each.startswith(PLATFORM) and GRAPH.find_children(each)
)


def imports_past_the_door(graph: grimp.ImportGraph, folder: str) -> list[str]:
    """Name the imports of modules in a folder by modules that are not in it."""
    return [
        f"{importer} -> {module}"
        for module in sorted(graph.find_descendants(folder) - WITHOUT_DOOR)
        for importer in sorted(graph.find_modules_that_directly_import(module))
        if importer != folder and not importer.startswith(f"{folder}.")
    ]


@pytest.mark.parametrize("folder", [each for each in FOLDERS if each not in OPEN])
def test_a_folder_is_entered_by_its_door_alone(folder: str) -> None:
    assert imports_past_the_door(GRAPH, folder) == []


def test_folders_without_a_door_exist_and_are_needed() -> None:
    assert set(FOLDERS) >= OPEN
    assert GRAPH.modules >= WITHOUT_DOOR
    assert all(imports_past_the_door(GRAPH, each) for each in OPEN.difference(PLATFORM))


def test_an_import_past_a_door_is_seen() -> None:
    graph = grimp.build_graph(*ROOTS, cache_dir=None)
    graph.add_import(importer="deltaweave.table", imported="deltaweave.delta.jvm.gateway")
    assert imports_past_the_door(graph, "deltaweave.delta.jvm") == [
        "deltaweave.table -> deltaweave.delta.jvm.gateway"
    ]
