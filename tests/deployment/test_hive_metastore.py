"""Tables of a Hive metastore are merged into by their names."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.minutes, pytest.mark.full_matrix]  # Derby makes 60 tables first

ROOT = Path(__file__).parents[2]


def test_tables_of_a_hive_metastore_are_created_and_merged_into_by_name(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "tests.deployment.hive_merges", str(tmp_path)],
        cwd=tmp_path,  # where Derby writes its log
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'platform'}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-4000:]
    outcome: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])

    assert outcome["catalog"] == "HiveExternalCatalog"
    assert (tmp_path / "metastore").is_dir()
    assert outcome["created"] == [True, False]
    before = [[1, "before"], [2, "before"]]
    by_text = [[1, "before"], [2, "by text"], [3, "by text"]]
    assert outcome["after_text"] == [2, by_text, before]
    assert outcome["after_clauses"] == [2, by_text, [[1, "by clauses"], [2, "before"]]]
    assert outcome["by_asset"] == [[[1, "by asset"]], 2]
    assert outcome["by_schema"] == [[[1, "by schema"]], 2]
    assert outcome["tables"] == {"bronze": ["orders"], "gold": ["orders", "refunds", "returns"]}
    assert outcome["provider"] == "delta"
    assert outcome["places"] == [
        f"file:{tmp_path}/warehouse/{name}"
        for name in ("bronze.db/orders", "gold.db/orders", "gold.db/returns")
    ]
