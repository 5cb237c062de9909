"""The generated parts of README.md: the tree and the settings. `python -m redraft_ops.readme README.md`
renews them.

A part stands between `<!-- name -->` and `<!-- /name -->`. A test compares, so that the page cannot fall
behind.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from redraft_ops import settings_table

PACKAGES = (
    "serving/redraft_serving",
    "trainer/redraft_trainer",
    "queue/redraft_queue",
    "models/redraft_models",
    "ops/redraft_ops",
)
LINE = 100


def renewed(text: str, root: Path) -> str:
    """`text` with its generated parts made anew from the source under `root`."""
    for name, part in (("tree", f"```\n{tree(root)}\n```"), ("settings", settings_table.markdown())):
        begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
        pattern = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.DOTALL)
        text = pattern.sub(lambda _, new=f"{begin}\n{part}\n{end}": new, text)  # type: ignore[misc]
    return text


def tree(root: Path) -> str:
    """One line per source file: its name and the first clause of its docstring."""
    return "\n".join(line for package in PACKAGES for line in _folder(root / package, root, 0))


def _folder(folder: Path, root: Path, depth: int) -> Iterator[str]:
    name = folder.relative_to(root) if depth == 0 else folder.name
    yield f"{'  ' * depth}{name}/"
    files = sorted(path for path in folder.glob("*.py") if path.name != "__init__.py")
    for path in files:
        yield f"{'  ' * (depth + 1)}{path.name:<{26 - 2 * depth}}{_clause(path)}".rstrip()
    for inner in sorted(path for path in folder.iterdir() if (path / "__init__.py").exists()):
        yield from _folder(inner, root, depth + 1)


def _clause(path: Path) -> str:
    """The docstring's first sentence, or what stands before its colon, cut at a word where that is long."""
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    paragraph = " ".join(docstring.split("\n\n")[0].split())
    sentence = re.split(r"(?<=[^.])\.(?= |$)", paragraph)[0]
    clause = re.split(r"[:;](?= |$)", sentence)[0]
    for text in (sentence, clause):
        if len(text) <= LINE:
            return text
    return clause[:LINE].rsplit(" ", 1)[0].rstrip(",") + " ..."


def main(path: Path) -> None:
    """Renew one README in place; the source is what stands beside it."""
    path.write_text(renewed(path.read_text(encoding="utf-8"), path.resolve().parent), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
