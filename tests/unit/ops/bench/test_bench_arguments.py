"""Arguments that can't be meant are refused in a sentence, before anything is started."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from redraft_ops import cli
from redraft_ops.failures import explained
from typer.testing import CliRunner


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--compare of", "--compare of is unknown"),
        ("--clients 0", "--clients 0"),
        ("--prompts none.jsonl", "can't be read"),
        ("--prompts prompts.jsonl --requests 7", "6 different prompts and 7 requests"),
        ("--check-equal --profile", "two benches"),
        ("--check-equal --temperature 1", "leave --temperature at 0"),
        ("--profile --rate 3", "--rate is a load over HTTP"),
        ("--acceptance 2", "--acceptance 2"),
        ("--dtype float8", "--dtype float8"),
        ("--replay --prompts prompts.jsonl", "leave --prompts out"),
        ("--prompts prompts.jsonl --requests 2 --max-tokens 5000", "max_model_len"),
        ("--prompts prompts.jsonl --requests 2 --acceptance 0.5 --draft none", "needs a draft"),
    ],
)
def test_refused(
    toy_pair: Callable[[str], tuple[Path, Path]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: str,
    words: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    lines = [{"prompt": f"w{n} w{n + 1}"} for n in range(6)]
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    target, draft = toy_pair("random")
    found = CliRunner().invoke(
        cli.app, ["bench", "--target", str(target), "--draft", str(draft), *arguments.split()]
    )
    assert isinstance(found.exception, Exception), found.output
    known = explained(found.exception)
    assert known is not None, found.exception
    assert known[0] == 2
    assert words in known[1]
    assert not (tmp_path / "redraft-bench").exists()
