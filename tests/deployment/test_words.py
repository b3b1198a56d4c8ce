"""`.ci/words`: what it takes for prose, and what its list finds."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WORDS = runpy.run_path(str(ROOT / ".ci" / "words"))
RULES = WORDS["rules"]((ROOT / ".ci" / "words.txt").read_text())


@pytest.mark.parametrize(
    ("name", "text", "lines"),
    [
        ("module.py", '"""The file is written anew."""\n', [1]),
        ("module.py", 'x = f"made anew: {x}"  # of which one\n', [1, 1]),
        ("module.py", '"""Title.\n\nAll but\nfor one.\n"""\n', [3]),  # over the end of a line
        ("module.py", "# All but\n# for one.\nx = 1  # Of one.\n", [1, 3]),  # nor of a comment's
        ("module.py", "anew = starts.anew\n", []),  # names are no prose
        ("module.py", "def test_it_is_made_anew() -> None: ...\n", [1]),  # except those of tests
        ("page.md", "Rows, most of which match, have not been read.\n", []),
        ("page.md", "A column that the table has not.\n\nSo it does.\n", [1, 3]),
        ("page.md", "`anew` is a name.\n\n```\nanew\n```\n\nIt begins anew.\n", [7]),
        ("page.md", "So it does not matter.\n", []),
        ("page.md", "A mend, so with others.\nOthers wait meanwhile.\n", [1, 2, 1]),
        (
            "module.py",
            "so_long = came_back = 1\nletting_go = 2  # letting_go\n",
            [2],
        ),  # whole names
    ],
)
def test_words_of_the_list_are_found_in_prose_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, text: str, lines: list[int]
) -> None:
    monkeypatch.setitem(WORDS["findings"].__globals__, "ROOT", tmp_path)
    file = tmp_path / name
    file.write_text(text)
    found = [int(line.split(":")[1]) for line in WORDS["findings"](file, RULES)]
    assert found == lines
