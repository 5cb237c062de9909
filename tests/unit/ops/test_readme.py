"""README.md keeps up with the source and the command line."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from redraft_ops import cli, readme

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def text() -> str:
    return (ROOT / "README.md").read_text()


def test_tree_and_settings_are_those_of_the_source(text: str) -> None:
    assert text == readme.renewed(text, ROOT), "run `make docs`"


def test_an_outdated_table_goes_red(text: str) -> None:
    outdated = text.replace("`REDRAFT_GATE__MIN_GAIN`", "`REDRAFT_GATE__MAX_GAIN`")
    assert outdated != readme.renewed(outdated, ROOT)


def test_every_command_is_described(text: str) -> None:
    for command in cli.app.registered_commands:
        name = command.name or (command.callback.__name__ if command.callback else "")
        assert f"`redraft {name}".replace("_", "-") in text, name


def test_every_setting_has_a_text() -> None:
    rows = readme.settings_table.markdown().splitlines()[2:]
    assert [row for row in rows if re.search(r"\|\s*\|$", row)] == []


def test_lists_are_written_as_a_variable_takes_them() -> None:
    row = next(row for row in readme.settings_table.markdown().splitlines() if "SERVING__PROPOSERS" in row)
    default = row.split("|")[2].strip().strip("`")
    assert json.loads(default) == ["draft", "ngram", "prediction"]


def test_every_file_has_a_line(text: str) -> None:
    for package in readme.PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            assert path.name in text or path.name == "__init__.py"
