"""Prompts that every machine has: functions of the Python standard library, or words of a toy."""

from __future__ import annotations

import ast
import random
import sysconfig
import textwrap
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

EXPLAIN = "Explain this in your own words.\n\n{text}"
INSTRUCTION = "Write the docstring of this Python function.\n\n```python\n{source}\n```"
SKIPPED_FOLDERS = {"test", "tests", "idlelib", "lib2to3", "site-packages", "turtledemo", "__pycache__"}


def docstring_prompts(seed: int, characters: tuple[int, int]) -> list[str]:
    """Every function of the standard library whose source, without its docstring, has a length in the bounds.

    Each prompt occurs once; the order is a shuffle by `seed` of a sorted list, so it depends on the Python
    version only.
    """
    shortest, longest = characters
    sources = {source for path in _modules() for source in _functions(path)}
    fitting = sorted(source for source in sources if shortest <= len(source) <= longest)
    random.Random(seed).shuffle(fitting)
    return [INSTRUCTION.format(source=source) for source in fitting]


def topic_prompts(seed: int, characters: tuple[int, int]) -> list[str]:
    """Every paragraph of Python's language reference, as `help()` has it, whose length is in the bounds.

    Another kind of text than functions: prose. Each prompt occurs once, in an order shuffled by `seed`.
    """
    from pydoc_data.topics import topics

    shortest, longest = characters
    blocks = (block for topic in topics.values() for block in topic.split("\n\n"))
    found = {" ".join(block.split()) for block in blocks if block[:1].isalpha() or block[:4].isspace()}
    fitting = sorted(text for text in found if shortest <= len(text) <= longest)
    random.Random(seed).shuffle(fitting)
    return [EXPLAIN.format(text=text) for text in fitting]


def word_prompts(seed: int, words: Sequence[str], length: int, count: int) -> list[str]:
    """`count` different prompts of `length` words each."""
    rng = random.Random(seed)
    made: dict[str, None] = {}
    while len(made) < count:
        made[" ".join(rng.choice(words) for _ in range(length))] = None
    return list(made)


def _modules() -> Iterator[Path]:
    root = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(root.rglob("*.py")):
        if not SKIPPED_FOLDERS.intersection(path.relative_to(root).parts):
            yield path


def _functions(path: Path) -> Iterator[str]:
    """Sources of a module's functions and methods, docstring cut out, indentation removed."""
    try:
        text = path.read_text(encoding="utf-8")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the library itself has invalid escapes in places
            tree = ast.parse(text)
    except (OSError, UnicodeDecodeError, SyntaxError):
        return
    lines = text.splitlines()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("__"):
            source = _without_docstring(node, lines)
            if source:
                yield source


def _without_docstring(node: ast.FunctionDef, lines: Sequence[str]) -> str:
    """The function's lines less its docstring's; empty where nothing else is left or both share a line."""
    first, last = node.lineno, node.end_lineno or node.lineno
    kept = range(first, last + 1)
    if ast.get_docstring(node, clean=False) is not None:
        docstring = node.body[0]
        if len(node.body) == 1 or docstring.lineno == first:
            return ""
        cut = range(docstring.lineno, (docstring.end_lineno or docstring.lineno) + 1)
        return textwrap.dedent("\n".join(lines[n - 1] for n in kept if n not in cut)).strip()
    return textwrap.dedent("\n".join(lines[n - 1] for n in kept)).strip()
