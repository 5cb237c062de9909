"""Prompts of the demo: no answer inside, no repeats, the same every time."""

from __future__ import annotations

import ast
from pathlib import Path

from redraft_ops.demo import prompts
from redraft_ops.demo.prompts import docstring_prompts, word_prompts

MODULE = '''
class Thing:
    def method(self, value):
        """The answer that a prompt must not give away.

        Over several lines.
        """
        total = value + 1
        return total * 2

def only_docstring():
    """Nothing else."""

def one_line(): "text"

async def skipped():
    return 1
'''


def test_the_docstring_is_cut_out_and_the_indentation_removed(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(MODULE)
    assert list(prompts._functions(path)) == [
        "def method(self, value):\n    total = value + 1\n    return total * 2"
    ]


def test_a_module_that_cannot_be_parsed_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_bytes(b"def broken(:\n\xff")
    assert list(prompts._functions(path)) == []


def test_prompts_of_this_machine() -> None:
    found = docstring_prompts(0, (120, 700))
    assert len(found) > 1000
    assert len(set(found)) == len(found)
    assert found == docstring_prompts(0, (120, 700))
    assert found[:50] != docstring_prompts(1, (120, 700))[:50]
    for prompt in found[:50]:
        source = prompt.split("```python\n")[1].rsplit("\n```", 1)[0]
        assert 120 <= len(source) <= 700
        (function,) = ast.parse(source).body
        assert isinstance(function, ast.FunctionDef)
        assert ast.get_docstring(function) is None


def test_word_prompts_differ() -> None:
    found = word_prompts(0, ["a", "b", "c"], 4, 60)
    assert len(set(found)) == 60
    assert all(len(prompt.split()) == 4 for prompt in found)
