"""docs/reliability.md names every fault test, and none that does not exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

# Put together, or this file would seem to have one.
MARK = "pytest.mark." + "faults"
HERE = Path(__file__).parent
TABLE = HERE.parents[1] / "docs" / "reliability.md"
_NAME = re.compile(r"`(test_\w+)(?:\[[^\]]*\])?`")


def written() -> set[str]:
    """Tests of the table's rows."""
    rows = [line for line in TABLE.read_text().splitlines() if line.startswith("|")]
    return {name for row in rows for name in _NAME.findall(row)}


def found() -> set[str]:
    """Tests of this folder that break something."""
    modules = [path for path in HERE.glob("test_*.py") if MARK in path.read_text()]
    return {
        node.name
        for path in modules
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }


def test_the_table_and_the_tests_agree() -> None:
    assert written() == found()
