"""The layout's traps, the public names, and the rule that the merge is the engine's own."""

from __future__ import annotations

import ast
import pydoc
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import pytest

import dagster_deltaweave
import deltaweave

ROOT = Path(__file__).parents[2]
PLATFORM = ROOT / "platform"
MODULES = sorted(PLATFORM.rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("test_*.py"))
OURS = ("deltaweave", "dagster_deltaweave", "resources", "assets", "benchmarks")

BUILT_IN_MERGE = (
    ".whenMatched",
    ".whenNotMatched",
    "MergeIntoCommand(",
    'spark.sql("MERGE',
    "spark.sql('MERGE",
    'spark.sql(f"MERGE',
    ".sql(statement",
    "runMerge",
    "findTouchedFiles(",
    "writeAllChanges(",
    "writeOnlyInserts(",
)

# Dagster's private names come through this module alone; import-linter sees external packages only
# as a whole.
DAGSTER_PRIVATE = PLATFORM / "dagster_deltaweave" / "dagster_private.py"
DAGSTER_SIDE = sorted(
    module
    for folder in (PLATFORM / "dagster_deltaweave", ROOT / "assets", ROOT / "resources")
    for module in folder.rglob("*.py")
    if module != DAGSTER_PRIVATE
)


def run_python(code: str, folder: Path = ROOT) -> str:
    """What the code prints, in an interpreter of its own."""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def module_id(module: Path) -> str:
    return str(module.relative_to(PLATFORM))


def imported_names(module: Path) -> set[str]:
    """What a module imports anywhere: `a.b` for `import a.b` and for `from a import b`."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.Import):
            names.update(each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names.update(f"{node.module}.{each.name}" for each in node.names)
    return names


def test_platform_is_a_source_root_and_no_package() -> None:
    assert MODULES
    assert not (PLATFORM / "__init__.py").exists()


def test_the_standard_librarys_platform_is_not_shadowed() -> None:
    assert run_python("import platform; print(platform.system())") == "Linux"


@pytest.mark.parametrize("package", [deltaweave, dagster_deltaweave])
def test_each_public_name_is_there(package: ModuleType) -> None:
    """The reference pages list them: `test_the_pages_of_the_api_have_every_public_name_once`."""
    for name in package.__all__:
        assert getattr(package, name) is not None


def test_help_fits_two_screens_and_names_what_is_public() -> None:
    page = pydoc.plain(pydoc.render_doc(deltaweave))
    assert len(page.splitlines()) <= 100
    assert {name for name in deltaweave.__all__ if name not in page} == set()
    assert set(dir(deltaweave)) == set(deltaweave.__all__)


def test_importing_deltaweave_imports_no_pyspark() -> None:
    code = (
        "import sys, deltaweave; from deltaweave import clauses, errors; "
        "print(*{name.split('.')[0] for name in sys.modules} & {'pyspark', 'py4j', 'delta'})"
    )
    assert run_python(code, folder=PLATFORM) == ""


def test_importing_deltaweave_imports_nothing_of_the_command_line() -> None:
    code = (
        "import sys, deltaweave; deltaweave.merge; "
        "print(*{'typer', 'rich', 'matplotlib', 'deltaweave.cli'}"
        " & set(sys.modules))"
    )
    assert run_python(code, folder=PLATFORM) == ""


@pytest.mark.parametrize("module", MODULES, ids=module_id)
def test_a_function_has_50_lines_of_code_at_most_or_says_why(module: Path) -> None:
    source = module.read_text()
    lines = source.splitlines()
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, functions) or "More than 50 lines:" in lines[node.lineno - 2]:
            continue
        # Without what it takes and is documented as; functions in it count by themselves.
        body = node.body[1:] if ast.get_docstring(node) else node.body
        body = [each for each in body if not isinstance(each, functions)]
        code = {
            line
            for each in body
            for line in range(each.lineno, (each.end_lineno or each.lineno) + 1)
            if lines[line - 1].strip() and not lines[line - 1].strip().startswith("#")
        }
        assert len(code) <= 50, node.name


def test_names_of_tests_have_70_characters_at_most() -> None:
    """What does not fit into the name is a sentence below it."""
    names = {
        f"{module.relative_to(ROOT)}::{node.name}"
        for module in TESTS
        for node in ast.walk(ast.parse(module.read_text()))
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }
    assert names
    assert {each for each in names if len(each.partition("::")[2]) > 70} == set()


def imported(module: ast.Module) -> dict[str, str]:
    """The modules and names of ours that a module imports anywhere, by the names that it uses."""
    names: dict[str, str] = {}
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            names.update((each.asname or each.name, each.name) for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names.update(
                (each.asname or each.name, f"{node.module}.{each.name}") for each in node.names
            )
    return {name: of for name, of in names.items() if of.split(".")[0] in OURS}


def is_private(name: str) -> bool:
    """Whether our code keeps a name to itself; modules with an underscore have names to test."""
    *of, last = name.split(".")
    folder = PLATFORM if of and (PLATFORM / of[0]).is_dir() else ROOT
    is_module = folder.joinpath(*of, f"{last}.py").exists()
    return last.startswith("_") and not last.startswith("__") and not is_module


def private_names(text: str) -> set[str]:
    """The private names of ours that a test imports, reads from a module or a class, or patches."""
    module = ast.parse(text)
    names = imported(module)
    found = set(names.values())
    for node in ast.walk(module):
        pair: list[ast.expr] = []
        if isinstance(node, ast.Attribute):
            pair = [node.value, ast.Constant(node.attr)]
        elif isinstance(node, ast.Tuple):
            pair = node.elts
        elif isinstance(node, ast.Call):
            pair = node.args
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            is_dotted = re.fullmatch(rf"({'|'.join(OURS)})(\.\w+)+", node.value)
            found |= {node.value} if is_dotted else set()
        for owner, name in pairwise(pair):
            root, _, rest = ast.unparse(owner).partition(".")
            if root in names and isinstance(name, ast.Constant) and isinstance(name.value, str):
                found.add(".".join(filter(None, (names[root], rest, name.value))))
    return {each for each in found if is_private(each)}


def test_no_test_patches_or_imports_a_private_name_of_ours() -> None:
    """What a test has to reach is public in its module, even if no other module imports it."""
    modules = {*(ROOT / "tests").rglob("*.py")} - {Path(__file__)}
    assert modules
    found = {
        f"{module.relative_to(ROOT)}: {name}"
        for module in modules
        for name in private_names(module.read_text())
    }
    assert found == set()


@pytest.mark.parametrize(
    "text",
    [
        "from deltaweave.maintenance import _last_vacuum",
        "from deltaweave import maintenance\nmaintenance._last_vacuum",
        "from deltaweave import maintenance\nmonkeypatch.setattr(maintenance, '_last_vacuum', 1)",
        "from deltaweave import maintenance\nWHERE = (maintenance, '_last_vacuum')",
        "monkeypatch.setattr('deltaweave.maintenance._last_vacuum', 1)",
    ],
)
def test_a_private_name_in_a_test_is_seen(text: str) -> None:
    assert private_names(text) == {"deltaweave.maintenance._last_vacuum"}


def test_a_private_method_in_a_test_is_seen() -> None:
    text = "from deltaweave import Table\nmonkeypatch.setattr(Table, '_log', 1)"
    assert private_names(text) == {"deltaweave.Table._log"}


def test_private_names_of_others_and_private_modules_are_free() -> None:
    text = "from pyspark import SparkContext\nfrom deltaweave import _session\n"
    assert private_names(text + "SparkContext._gateway, self._name, _session.TESTED") == set()


# Words with which ruff's D401 lets a docstring begin, since it does not know them.
NO_VERBS = {"all", "as", "how", "its", "no", "of", "one", "only", "that", "their", "these", "those"}
NO_VERBS |= {"what", "when", "where", "whether", "which", "why"}
# Their docstrings are the descriptions of tables in Dagster's UI.
TABLES_OF_THE_DEMO = {"returns_by_reason", "web_returns"}


def test_docstrings_of_functions_begin_with_a_verb() -> None:
    """Properties and classes are named by nouns."""
    found = set()
    for module in sorted({*MODULES, *DAGSTER_SIDE}):
        for node in ast.walk(ast.parse(module.read_text())):
            if not isinstance(node, ast.FunctionDef) or node.name in TABLES_OF_THE_DEMO:
                continue
            text = ast.get_docstring(node) or "Run."
            is_property = any("property" in ast.unparse(each) for each in node.decorator_list)
            if not is_property and text.split()[0].lower() in NO_VERBS:
                found.add(f"{module.relative_to(ROOT)}: {text.splitlines()[0]}")
    assert found == set()


@pytest.mark.parametrize("module", MODULES, ids=module_id)
def test_no_module_calls_built_in_merge(module: Path) -> None:
    source = module.read_text()
    assert [call for call in BUILT_IN_MERGE if call in source] == []


def test_dagsters_private_names_are_imported_by_one_module() -> None:
    private = ("dagster._", "dagster_shared._", "dagster_pyspark._")
    assert any(name.startswith(private) for name in imported_names(DAGSTER_PRIVATE))
    found = {
        str(module.relative_to(ROOT)): names
        for module in DAGSTER_SIDE
        if (names := {each for each in imported_names(module) if each.startswith(private)})
    }
    assert found == {}


@pytest.mark.parametrize(
    ("call", "modules"),
    [
        # `grouped`, and rows whose tasks say what they return.
        (".groupBy(", {"delta/jvm/data_frames.py", "engine/strategies/copy_in_place.py"}),
        ("F.to_json(", {"delta/jvm/data_frames.py"}),  # `json_text`
        (".toArrow()", {"delta/jvm/data_frames.py"}),  # `collected`
    ],
)
def test_calls_whose_result_depends_on_settings_have_one_door(call: str, modules: set[str]) -> None:
    calling = {module_id(module) for module in MODULES if call in module.read_text()}
    inside = {name for name in calling if name.startswith("deltaweave/")}
    assert inside == {f"deltaweave/{name}" for name in modules}


def test_a_named_tuple_has_no_other_base() -> None:
    """Python 3.10, which `requires-python` allows, knows no generic NamedTuple."""
    for module in MODULES:
        for each in ast.walk(ast.parse(module.read_text())):
            if isinstance(each, ast.ClassDef):
                bases = [ast.unparse(base) for base in each.bases]
                assert bases == ["NamedTuple"] or "NamedTuple" not in bases, (
                    f"{module}: {each.name}"
                )
