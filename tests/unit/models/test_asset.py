"""The shipped draft as files: what its adapters rest on, and the head that it brings."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path

import pytest
from redraft_models.draft_folder import read_draft_head, read_recipe
from redraft_models.errors import SourceError

FOLDER = Path(str(files("redraft_models"))) / "assets" / "smollm2-135m-draft"
FINGERPRINT = "a2a0b0b250a532fef8bccb5679896694a4db8d694e9fac8e23ddf2400f42a4ed"
VOCABULARY, END = 49152, 2


def test_adapters_of_the_shipped_draft_stay_valid() -> None:
    """Every registered version names this; a trimmed head must not change it."""
    assert read_recipe(FOLDER).base_draft_fingerprint == FINGERPRINT


def test_the_shipped_head_is_sound_and_told_of() -> None:
    recipe = read_recipe(FOLDER)
    head = read_draft_head(FOLDER, recipe, VOCABULARY)
    assert head is not None
    assert END in head.tolist()
    told = json.loads((FOLDER / "provenance.json").read_text())["head"]
    assert told["ids"] == len(head) == 8192
    assert told["acceptance"] > told["acceptance_full_head"] - 0.01
    with pytest.raises(SourceError, match="outside of a vocabulary"):
        read_draft_head(FOLDER, recipe, int(head[-1]))
