"""The product turns no data into code."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODULES = [
    path for folder in ("platform", "resources", "assets") for path in (ROOT / folder).rglob("*.py")
]
CALLS = {
    *("eval", "exec", "os.system", "os.popen", "tempfile.mktemp"),
    *("pickle.load", "pickle.loads", "cloudpickle.load", "cloudpickle.loads", "marshal.loads"),
    *("yaml.load", "yaml.unsafe_load", "yaml.full_load"),
}


def dangerous_calls(text: str) -> list[str]:
    calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    shells = [each for call in calls for each in call.keywords if each.arg == "shell"]
    return [
        *(name for call in calls if (name := ast.unparse(call.func)) in CALLS),
        *(f"shell={ast.unparse(each.value)}" for each in shells),
    ]


def test_no_module_turns_data_into_code() -> None:
    assert MODULES
    found = {str(path.relative_to(ROOT)): dangerous_calls(path.read_text()) for path in MODULES}

    assert {path: calls for path, calls in found.items() if calls} == {}


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ("import pickle\npickle.loads(b'')", ["pickle.loads"]),
        ("subprocess.run('ls', shell=True)", ["shell=True"]),
        ("spark.sql('SELECT 1'); json.loads('1')", []),
    ],
)
def test_a_dangerous_call_is_seen(text: str, calls: list[str]) -> None:
    assert dangerous_calls(text) == calls
