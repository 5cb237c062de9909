"""Names, aliases, tracking URIs and texts of the registry: all that needs no store."""

import subprocess
import sys
from pathlib import Path

import pytest
from redraft_models.errors import RegistryError
from redraft_models.registry import Aliases, Registry
from redraft_models.registry_names import experiment_name, model_name
from redraft_models.registry_text import model_description, version_description, version_words


def test_a_domain_names_its_experiment_and_its_model() -> None:
    assert experiment_name("python.docs") == "redraft/python.docs"
    assert model_name("python.docs") == "redraft-python.docs"


@pytest.mark.parametrize("domain", ["", "a/b", "a b", "x" * 65, "../etc", "a'b", ".hidden", "ü"])
def test_a_domain_that_is_no_plain_name_is_refused(domain: str) -> None:
    with pytest.raises(RegistryError, match="cannot be used"):
        model_name(domain)


@pytest.mark.parametrize("alias", ["latest", "LATEST", "v3", "V12", "a/b", "", "a b"])
def test_alias_names_that_mlflow_refuses_are_refused_at_the_start(alias: str) -> None:
    with pytest.raises(RegistryError, match="alias"):
        Aliases(champion=alias)


def test_aliases_must_differ() -> None:
    with pytest.raises(RegistryError, match="three different names"):
        Aliases(champion="live", previous="live")


@pytest.mark.parametrize(
    "uri",
    [
        "file:./mlruns",
        "./mlruns",
        "",
        "sqlite://",
        "sqlite:///",
        "sqlite:///:memory:",
        "postgresql://u:secret@h/db",
    ],
)
def test_other_tracking_uris_are_refused_with_what_to_use(uri: str) -> None:
    with pytest.raises(RegistryError, match="sqlite:////absolute/path") as caught:
        Registry(uri)
    assert "secret" not in str(caught.value)


def test_an_unusable_database_is_a_registry_error(tmp_path: Path) -> None:
    (tmp_path / "mlflow.db").write_text("this is not a database, however long one reads it" * 100)
    with pytest.raises(RegistryError, match="could not open the store"):
        Registry(f"sqlite:///{tmp_path}/mlflow.db")


def test_importing_the_registry_imports_neither_mlflow_nor_torch() -> None:
    heavy = "{'mlflow', 'torch'}"
    code = f"import sys, redraft_models.registry; sys.exit(bool({heavy} & sys.modules.keys()))"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


def test_a_version_explains_itself_in_markdown() -> None:
    text = version_description(
        {
            "decision": "rejected",
            "decision_reason": "The candidate's acceptance of 0.5000 does not exceed the champion's 0.6000.",
            "acceptance_rate": "0.5",
            "champion_acceptance_rate": "0.6",
            "gain": "-0.1",
            "gain_ci_low": "-0.12",
            "gain_ci_high": "-0.08",
            "heldout_requests": "40",
            "heldout_tokens": "4000",
            "stream_first_id": "1-0",
            "stream_last_id": "9-0",
        },
        heading="Round of 3 May",
    )
    assert text.startswith(
        "Round of 3 May\n\n**Not promoted.** The candidate's acceptance of 0.5000 does not"
    )
    assert "| gain | -0.1000 (interval -0.1200 to -0.0800) |" in text
    assert "| held out | 40 requests, 4000 tokens |" in text
    assert "| trained on stream ids | `1-0` to `9-0` |" in text


def test_texts_stand_missing_and_odd_tags() -> None:
    assert version_description({}) == "**Candidate.**"
    assert "n/a" in version_description({"acceptance_rate": "n/a"})
    assert "the base draft" in model_description("d", version_words(None, {}), version_words(None, {}))
    assert version_words(3, {"acceptance_rate": "0.61"}) == "version 3, measured acceptance 0.6100"


def test_a_versions_text_tells_of_its_head() -> None:
    text = version_description({"head_size": "8192", "head_coverage": "0.998912"})
    assert "| head | 8192 ids, 0.9989 of the held-out tokens |" in text
    assert "head" not in version_description({"gain": "0.1"}), "versions from before heads"
