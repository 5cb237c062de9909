"""Names, aliases, tracking URIs and texts of the registry: all that needs no store."""

import subprocess
import sys
from pathlib import Path

import pytest
from redraft_models.errors import RegistryError
from redraft_models.registry import Aliases, Registry
from redraft_models.registry_names import experiment_name, model_name


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
