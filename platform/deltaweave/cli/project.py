"""The command `init`: a Dagster project with a first table, which runs as it is.

Its files are those in `project_files`, with `$package` and `$release` filled in.
"""

from __future__ import annotations

import importlib.util
import keyword
import re
import shutil
import sys
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Annotated

import typer

from deltaweave.cli.options import FAILED, MISUSED, fail

if TYPE_CHECKING:
    from importlib.abc import Traversable

_TEMPLATES = "project_files"
_SUFFIX = ".template"

# Also a name of a distribution: ASCII, with a letter first, and no underscore last.
_PACKAGE = re.compile(r"[a-z]([a-z0-9_]*[a-z0-9])?", re.IGNORECASE)


def init(
    directory: Annotated[
        Path, typer.Argument(help="Where it is made: a new or an empty directory.")
    ],
    package: Annotated[
        str | None,
        typer.Option(
            help="Name of its Python package; by default the directory's, with _ for -.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Make a Dagster project that merges what lands into a Delta table."""
    name = package or directory.absolute().name.replace("-", "_")
    problem = _problem_of_package(name) or _problem_of_directory(directory)
    if problem is not None:
        fail(problem, MISUSED)
    try:
        _write_project(directory, name)
    except OSError as error:
        fail(f"{directory} cannot be written: {error.strerror}.", FAILED)
    print(
        f"{directory} holds the package {name} with the tables orders and orders_by_state. Next:\n"
    )
    print(f"  cd {directory}")
    print("  pip install -e .")
    print(f"  python -m {name}.land")
    print('  DAGSTER_HOME="$PWD/dagster_home" dagster dev\n')
    print("Then http://localhost:3000 shows the run that merges the batch. README.md has the rest.")


def _problem_of_package(name: str) -> str | None:
    """Return why a package cannot have the name; None if it can."""
    if _PACKAGE.fullmatch(name) is None or keyword.iskeyword(name):
        return (
            f"{name!r} is not a valid name for a Python package: it needs letters, digits and _, "
            "with a letter first and no _ last. Give one with --package."
        )
    if name in sys.stdlib_module_names or _is_installed(name):
        return (
            f"this Python has a package {name} already: only one of the two could be imported. "
            "Give another name with --package."
        )
    return None


def _is_installed(name: str) -> bool:
    found = importlib.util.find_spec(name)
    return found is not None and found.origin is not None  # any directory is found, without origin


def _problem_of_directory(directory: Path) -> str | None:
    """Return why the project cannot be made there; None if it can."""
    if directory.is_dir() and any(directory.iterdir()):
        return f"{directory} is not empty. Name a directory that is new or empty."
    if directory.exists() and not directory.is_dir():
        return f"{directory} is a file. Name a directory that is new or empty."
    return None


def _write_project(directory: Path, package: str) -> None:
    """Write all files of the project, or none of them."""
    from deltaweave import __version__

    is_new = not directory.exists()
    directory.mkdir(parents=True, exist_ok=True)
    try:
        for path, template in _templates(files("deltaweave.cli") / _TEMPLATES, Path()):
            file = directory / Path(
                *(package if part == "package" else part for part in path.parts)
            )
            file.parent.mkdir(parents=True, exist_ok=True)
            text = Template(template.read_text(encoding="utf-8"))
            file.write_text(text.substitute(package=package, release=__version__), encoding="utf-8")
    except OSError:
        for each in directory.iterdir():  # it was empty
            shutil.rmtree(each) if each.is_dir() else each.unlink()
        if is_new:
            directory.rmdir()
        raise


def _templates(folder: Traversable, path: Path) -> Iterator[tuple[Path, Traversable]]:
    """Yield the templates under a folder, each with its file's path in the project."""
    for each in folder.iterdir():
        if each.is_dir():
            yield from _templates(each, path / each.name)
        elif each.name.endswith(_SUFFIX):
            yield path / each.name.removesuffix(_SUFFIX), each
