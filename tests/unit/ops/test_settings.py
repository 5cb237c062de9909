"""Where settings come from, which one wins, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from redraft_ops.errors import ServerUnreachable
from redraft_ops.failures import explained
from redraft_ops.settings import SettingsError, as_environment, load_settings, masked
from redraft_ops.stack import open_stack
from redraft_queue.errors import BadName, BadUrl


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


def test_command_line_beats_environment_beats_dotenv_beats_toml(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "redraft.toml").write_text(
        "[serving]\nport = 1\nmax_num_seqs = 2\nmax_waiting = 3\nmax_n = 4\n"
    )
    (tmp_path / ".env").write_text(
        "REDRAFT_SERVING__PORT=10\nREDRAFT_SERVING__MAX_NUM_SEQS=20\n"
        "REDRAFT_SERVING__MAX_WAITING=30\nOTHER=1\n"
    )
    monkeypatch.setenv("REDRAFT_SERVING__PORT", "100")
    monkeypatch.setenv("REDRAFT_SERVING__MAX_NUM_SEQS", "200")
    serving = load_settings({"serving": {"port": 1000}}).serving
    assert (serving.port, serving.max_num_seqs, serving.max_waiting, serving.max_n) == (1000, 200, 30, 4)


def test_mlflow_keeps_the_name_of_its_own_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://registry:5000")
    assert load_settings().mlflow_tracking_uri == "http://registry:5000"


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("REDRAFT_MODELS__DTYPE", "float8", ("models.dtype", "'float8'", "bfloat16")),
        ("REDRAFT_GATE__MIN_GIAN", "0.1", ("gate.min_gian", "does not exist")),
        ("REDRAFT_NONSENSE", "1", ("REDRAFT_NONSENSE", "no setting")),
        ("REDRAFT_DEFAULT_DOMAIN", "a/b", ("a/b", "letters")),
        ("REDRAFT_DEFAULT_DOMAIN", "_a", ("_a", "first a letter or digit")),
        ("MLFLOW_TRACKING_URI", "file:./mlruns", ("file:./mlruns", "sqlite")),
        ("REDRAFT_SERVING__PORT", "99999", ("serving.port", "99999")),
        ("REDRAFT_SERVING__DOMAIN_SPECULATIVE_TOKENS", '{"a b": 3}', ("domain_speculative_tokens", "a b")),
        (
            "REDRAFT_SERVING__DOMAIN_SPECULATIVE_TOKENS",
            '{"a": -1}',
            ("domain_speculative_tokens.a", "-1", "0 to 64"),
        ),
        ("REDRAFT_SERVING__NUM_SPECULATIVE_TOKENS", "65", ("num_speculative_tokens", "'65'", "0 to 64")),
        ("REDRAFT_SERVING__NUM_SPECULATIVE_TOKENS", "some", ("'some'", 'use "auto" or a whole number')),
    ],
)
def test_a_wrong_setting_is_one_sentence_with_its_name_and_value(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, words: tuple[str, ...]
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(SettingsError) as caught:
        load_settings()
    message = str(caught.value)
    assert all(word in message for word in words), message
    assert "\n" not in message
    assert "http" not in message.replace("http(s)", "")


@pytest.mark.parametrize("text", ["nonsense = 1", "[gate]\nnonsense = 1", "= broken"])
def test_a_wrong_toml_file_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "redraft.toml").write_text(text)
    with pytest.raises(SettingsError):
        load_settings()


def test_secrets_are_masked_and_never_in_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDRAFT_REDIS_URL", "redis://:hunter2@example:6379")
    monkeypatch.setenv("REDRAFT_SERVING__API_KEY", "sesame-open")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://me:hunter2@registry:5000")
    shown = json.dumps(masked(load_settings()))
    assert "hunter2" not in shown
    assert "sesame-open" not in shown
    assert "https://***@registry:5000" in shown
    assert load_settings().mlflow_tracking_uri == "https://me:hunter2@registry:5000"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "mysql://me:hunter2@registry:5000")
    with pytest.raises(SettingsError, match="mlflow_tracking_uri") as caught:
        load_settings()
    assert "hunter2" not in str(caught.value)


KEYS = {"shop": {"key": "hush-1", "domains": ["support", "faq"], "store": False}, "lab": {"key": "hush-2"}}


def test_keys_bound_to_domains_are_masked_and_reach_child_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = load_settings({"serving": {"api_keys": KEYS, "admin_key": "hush-3"}})
    shown = masked(settings)["serving"]
    assert "hush" not in json.dumps(shown)
    assert shown["api_keys"]["shop"] == {"key": "*" * 10, "domains": ["support", "faq"], "store": False}
    for name, value in as_environment(settings).items():
        monkeypatch.setenv(name, value)
    assert load_settings().serving == settings.serving


@pytest.mark.parametrize(
    "serving",
    [
        {"api_key": "hush-1", "admin_key": "hush-1"},
        {"api_keys": {**KEYS, "more": {"key": "hush-1"}}},
        {"api_keys": {"shop": {"key": "hush-1", "domains": "support"}}},
        {"api_keys": {"shop": "hush-1"}},
        {"api_keys": {"shop": {"kee": "hush-1"}}},
        {"api_keys": {"shop": {"key": ["hush-1"]}}},
        {"api_keys": {"a b": {"key": "hush-1"}}},
        {"api_keys": ["hush-1"]},
        {"admin_key": ["hush-1"]},
        {"admin_key": "hush 1"},
    ],
)
def test_no_key_stands_in_a_message(serving: dict[str, object]) -> None:
    with pytest.raises(SettingsError) as refused:
        load_settings({"serving": serving})
    assert "hush" not in str(refused.value)
    assert "serving" in str(refused.value)


def test_keys_that_are_no_json_are_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDRAFT_SERVING__API_KEYS", '{"shop": hush-1')
    with pytest.raises(SettingsError, match="JSON") as refused:
        load_settings()
    assert "hush" not in str(refused.value)


def test_an_empty_tracking_uri_is_as_good_as_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compose files pass on variables that nobody has set."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "")
    assert load_settings().mlflow_tracking_uri is None


def test_a_password_in_a_query_is_not_in_the_message_either() -> None:
    settings = load_settings({"redis_url": "redis://127.0.0.1:1/0?password=hunter2"})
    with open_stack(settings) as stack, pytest.raises(ServerUnreachable, match=r"127\.0\.0\.1:1") as caught:
        stack.require_redis()
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("error", [BadUrl("no such scheme"), BadName("a/b is no name")])
def test_a_wrong_address_or_name_is_for_the_caller_to_change(error: Exception) -> None:
    assert explained(error) == (2, str(error))


def test_a_child_process_resolves_the_same_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    here = load_settings(
        {
            "redis_url": "redis://:secret@x:1",
            "data_dir": tmp_path / "data",
            "domains": ["a", "b"],
            "serving": {
                "api_key": "k",
                "port": 81,
                "num_speculative_tokens": 2,
                "proposers": ["ngram", "prediction"],
                "domain_speculative_tokens": {"Law": 4, "support": "auto"},
                "policy": {"explore_share": 0.02, "dwell_rounds": 7},
            },
            "gate": {"min_gain": 0.5},
        }
    )
    for name, value in as_environment(here).items():
        monkeypatch.setenv(name, value)
    assert load_settings() == here
    serving = masked(here)["serving"]
    assert serving["proposers"] == ["ngram", "prediction"]
    assert serving["domain_speculative_tokens"] == {"Law": 4, "support": "auto"}
    assert (serving["policy"]["explore_share"], serving["policy"]["dwell_rounds"]) == (0.02, 7)


def test_settings_two_levels_deep_come_from_the_environment_and_from_toml(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "redraft.toml").write_text(
        '[serving]\nnum_speculative_tokens = 5\nproposers = ["draft"]\n'
        "[serving.policy]\nexplore_share = 0.1\ndwell_rounds = 9\n"
    )
    monkeypatch.setenv("REDRAFT_SERVING__POLICY__EXPLORE_SHARE", "0.03")
    serving = load_settings().serving
    assert (serving.num_speculative_tokens, serving.proposers) == (5, ("draft",))
    assert (serving.policy.explore_share, serving.policy.dwell_rounds) == (0.03, 9)
    monkeypatch.setenv("REDRAFT_SERVING__POLICY__EXPLORE_SHAER", "0.03")
    with pytest.raises(SettingsError, match="explore_shaer"):
        load_settings()
