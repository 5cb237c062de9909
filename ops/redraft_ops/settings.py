"""All settings of redraft, composed from the sections that each package owns.

Read once at an entry point (`load_settings`) and passed down. Order: command-line options, environment
(`REDRAFT_`, nested with `__`), `.env`, `redraft.toml`, defaults. Unknown keys are refused.
"""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import (
    AliasChoices,
    BaseModel,
    Field,
    SecretStr,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)
from pydantic_settings.exceptions import SettingsError as UnreadableSetting
from redraft_models.settings import ModelSettings
from redraft_queue.keys import check_name
from redraft_queue.settings import QueueSettings
from redraft_serving.settings import ServingSettings
from redraft_trainer.settings import GateSettings, TrainerSettings

from redraft_ops.up.settings import UpSettings

PREFIX = "REDRAFT_"
TOML_FILE = "redraft.toml"


class SettingsError(Exception):
    """A setting is wrong; the message names it, its value and what is allowed."""


class Settings(BaseSettings):
    """Everything that can be turned, by section."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        env_nested_delimiter="__",
        env_file=".env",
        dotenv_filtering="match_prefix",
        toml_file=TOML_FILE,
        extra="forbid",
        frozen=True,
    )

    redis_url: SecretStr | None = Field(
        None, description="Redis or Valkey; unset: an embedded Valkey is started."
    )
    mlflow_tracking_uri: str | None = Field(
        None,
        validation_alias=AliasChoices("mlflow_tracking_uri", "redraft_mlflow_tracking_uri"),
        description="MLflow (http or sqlite), also read from MLFLOW_TRACKING_URI; unset: sqlite in data_dir.",
    )
    data_dir: Path = Field(
        default_factory=lambda: _xdg("XDG_DATA_HOME", ".local/share"),
        description="State: embedded Valkey, MLflow, rounds.",
    )
    cache_dir: Path = Field(
        default_factory=lambda: _xdg("XDG_CACHE_HOME", ".cache"), description="Converted models."
    )
    default_domain: str = Field("default", description="Domain of a request that names none.")
    domains: list[str] = Field(["default"], description="Domains that beat schedules training rounds for.")
    shared_drafts: dict[str, str] = Field(
        {}, description="Domain -> the domain whose champion serves it; it is not trained on its own."
    )
    models: ModelSettings = Field(default_factory=lambda: ModelSettings.model_validate({}))
    serving: ServingSettings = Field(default_factory=ServingSettings)
    queue: QueueSettings = Field(default_factory=lambda: QueueSettings.model_validate({}))
    trainer: TrainerSettings = Field(default_factory=TrainerSettings)
    gate: GateSettings = Field(default_factory=GateSettings)
    up: UpSettings = Field(default_factory=lambda: UpSettings.model_validate({}))

    @field_validator("data_dir", "cache_dir")
    @classmethod
    def _absolute(cls, value: Path) -> Path:
        return value.expanduser().absolute()

    @field_validator("mlflow_tracking_uri")
    @classmethod
    def _tracking_scheme(cls, value: str | None) -> str | None:
        if value and not value.startswith(("sqlite:///", "http://", "https://")):
            raise ValueError(
                "use sqlite:///<file> or an http(s) address; MLflow's file store is not supported"
            )
        return value or None

    @model_validator(mode="after")
    def _domain_names(self) -> Settings:
        for domain in (self.default_domain, *self.domains):
            check_name(domain)
        return self

    @model_validator(mode="after")
    def _shares(self) -> Settings:
        for domain, lender in self.shared_drafts.items():
            check_name(domain)
            check_name(lender)
            if domain == lender:
                raise ValueError(f"shared_drafts: {domain} can't take its own draft; leave it out")
            if lender in self.shared_drafts:
                raise ValueError(
                    f"shared_drafts: {domain} takes the draft of {lender}, which takes that of "
                    f"{self.shared_drafts[lender]}; name the last one for both"
                )
        return self

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Command line, environment, .env, secrets, then the TOML file."""
        toml = TomlConfigSettingsSource(settings_cls)
        return init_settings, env_settings, dotenv_settings, file_secret_settings, toml


def load_settings(overrides: Mapping[str, Any] | None = None) -> Settings:
    """Resolve the settings; `overrides` (nested) come from command-line options and win.

    Raises SettingsError with one sentence that names the setting, its value and what to do.
    """
    _refuse_unknown_environment()
    try:
        return Settings(**dict(overrides or {}))
    except ValidationError as error:
        raise SettingsError(_sentence(error)) from error
    except UnreadableSetting as error:
        raise SettingsError(
            f"{error}: its value is not the JSON it has to be; see `redraft config`"
        ) from None
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{TOML_FILE} is not valid TOML ({error}); correct it or remove it") from error


def masked(settings: BaseModel) -> dict[str, Any]:
    """Nested plain values, secrets and passwords in addresses hidden."""
    return {name: _hidden(value) for name, value in settings.model_dump(mode="json").items()}


def without_password(text: str) -> str:
    """The text without user names and passwords of addresses in it."""
    return re.sub(r"//[^/@\s]*@", "//***@", text)


def _hidden(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _hidden(one) for name, one in value.items()}
    return without_password(value) if isinstance(value, str) else value


def _xdg(variable: str, fallback: str) -> Path:
    return Path(os.environ.get(variable) or Path.home() / fallback) / "redraft"


def _refuse_unknown_environment() -> None:
    """pydantic-settings ignores unknown variables; a typing error in a name would be silent."""
    known = {name.upper() for name in Settings.model_fields}
    for variable in os.environ:
        name = variable.upper().removeprefix(PREFIX)
        if variable.upper().startswith(PREFIX) and name.split("__")[0] not in known:
            raise SettingsError(
                f"environment variable {variable} is no setting of redraft; see `redraft config`"
            )


def _sentence(error: ValidationError) -> str:
    """The first thing that is wrong, as one sentence without pydantic's address."""
    first = error.errors(include_url=False)[0]
    name = ".".join(str(part) for part in first["loc"]) or "settings"
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] == "extra_forbidden":
        return f"setting {name} does not exist; see `redraft config` for the names"
    # A section as a whole holds secrets, whatever its name is.
    hidden = "url" in name or "key" in name or not first["loc"] or isinstance(first["input"], dict)
    value = "" if hidden else f" = {first['input']!r}"
    more = error.error_count() - 1
    rest = f" ({more} more wrong)" if more else ""
    return without_password(f"setting {name}{value} is wrong: {message}{rest}; see `redraft config`")


def as_environment(settings: Settings) -> dict[str, str]:
    """Variables that make another process resolve these same settings; unset ones are left out."""
    return dict(_variables(settings, PREFIX))


def _variables(section: BaseModel, prefix: str) -> Iterator[tuple[str, str]]:
    for name in type(section).model_fields:
        value = getattr(section, name)
        variable = f"{prefix}{name}".upper()
        if isinstance(value, BaseModel):
            yield from _variables(value, f"{variable}__")
        elif isinstance(value, SecretStr):
            yield variable, value.get_secret_value()
        elif isinstance(value, (list, tuple, dict)):
            yield variable, json.dumps(value, default=_plain)
        elif value is not None:
            yield variable, str(value)


def _plain(value: Any) -> Any:
    """What JSON does not know, as another process's settings take it: sections, secrets, paths."""
    if isinstance(value, BaseModel):
        return {name: getattr(value, name) for name in type(value).model_fields}
    return value.get_secret_value() if isinstance(value, SecretStr) else str(value)
