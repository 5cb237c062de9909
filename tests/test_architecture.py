"""Who may import whom, read from the source with `ast`, so that no import has to run."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ALLOWED = {
    "redraft_models": set(),
    "redraft_queue": set(),
    "redraft_serving": {"redraft_models", "redraft_queue"},
    "redraft_trainer": {"redraft_models", "redraft_queue"},
    "redraft_ops": {"redraft_models", "redraft_queue", "redraft_serving", "redraft_trainer"},
}
FOLDERS = {
    "redraft_models": "models",
    "redraft_queue": "queue",
    "redraft_serving": "serving",
    "redraft_trainer": "trainer",
    "redraft_ops": "ops",
}
FORBIDDEN_OUTSIDE = {"redraft_queue": {"torch", "transformers", "mlflow", "peft", "accelerate"}}
NO_PICKLE = {"pickle", "cloudpickle", "dill", "joblib"}
MAX_LINES = 300
MAX_FUNCTION_LINES = 60


def sources(package: str) -> list[Path]:
    return sorted((ROOT / FOLDERS[package] / package).rglob("*.py"))


def imported(source: str) -> Iterator[tuple[int, str]]:
    """(line, top-level package) of every import, inside functions and type-checking blocks too."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name.split(".")[0]) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: relative import"
            yield node.lineno, (node.module or "").split(".")[0]


def wrong_imports(package: str, source: str) -> list[tuple[int, str]]:
    ours = ALLOWED[package] | {package}
    banned = FORBIDDEN_OUTSIDE.get(package, set()) | NO_PICKLE
    return [
        (line, name)
        for line, name in imported(source)
        if (name.startswith("redraft_") and name not in ours) or name in banned
    ]


def long_functions(source: str) -> list[tuple[str, int]]:
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    sizes = (
        (node.name, (node.end_lineno or 0) - node.lineno + 1)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, kinds)
    )
    return [(name, lines) for name, lines in sizes if lines > MAX_FUNCTION_LINES]


@pytest.mark.parametrize("package", ALLOWED)
def test_imports_point_the_allowed_way(package: str) -> None:
    files = sources(package)
    assert files
    wrong = {
        f"{path.relative_to(ROOT)}:{line}": name
        for path in files
        for line, name in wrong_imports(package, path.read_text())
    }
    assert wrong == {}


@pytest.mark.parametrize(
    ("package", "source"),
    [
        ("redraft_models", "from redraft_queue.records import Sample"),
        ("redraft_queue", "def f():\n    import torch"),
        ("redraft_queue", "from redraft_models import laws"),
        ("redraft_serving", "if TYPE_CHECKING:\n    from redraft_trainer.reports import MeasureReport"),
        ("redraft_trainer", "import redraft_serving.engine"),
        ("redraft_serving", "import redraft_ops"),
        ("redraft_models", "import pickle"),
    ],
)
def test_a_wrong_import_goes_red(package: str, source: str) -> None:
    assert len(wrong_imports(package, source)) == 1


@pytest.mark.parametrize("package", ALLOWED)
def test_files_and_functions_stay_small(package: str) -> None:
    long_files = {
        str(p.relative_to(ROOT)) for p in sources(package) if len(p.read_text().splitlines()) > MAX_LINES
    }
    functions = {
        f"{p.relative_to(ROOT)}:{name}": n
        for p in sources(package)
        for name, n in long_functions(p.read_text())
    }
    assert long_files == set()
    assert functions == {}


def test_a_long_function_goes_red() -> None:
    body = "\n".join("    x = 1" for _ in range(MAX_FUNCTION_LINES))
    assert long_functions(f"def f():\n{body}") == [("f", MAX_FUNCTION_LINES + 1)]


def test_the_cache_api_of_transformers_is_used_in_one_file() -> None:
    users = [
        path.name for path in sources("redraft_serving") if "transformers.cache_utils" in path.read_text()
    ]
    assert len(users) <= 1


def environment_reads(source: str) -> list[int]:
    """Lines outside functions and classes that touch the environment."""
    own = (ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef)
    top = [node for node in ast.parse(source).body if not isinstance(node, own)]
    parts = [part for node in top for part in ast.walk(node) if isinstance(part, ast.Attribute)]
    return [part.lineno for part in parts if part.attr in {"environ", "getenv"}]


@pytest.mark.parametrize("package", ALLOWED)
def test_nothing_reads_the_environment_at_import(package: str) -> None:
    readers = {str(p.relative_to(ROOT)) for p in sources(package) if environment_reads(p.read_text())}
    assert readers == set()


def test_reading_the_environment_at_import_goes_red() -> None:
    assert environment_reads("import os\nHOME = os.environ['HOME']\ndef f():\n    os.getenv('X')") == [2]
