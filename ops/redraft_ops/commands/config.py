"""`redraft config`: the resolved settings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from redraft_ops.options import AsJson
from redraft_ops.output import emit_json, emit_table


def config(json: AsJson = False) -> None:
    """Print every setting as it resolves here, secrets masked."""
    from redraft_ops.settings import load_settings, masked

    values = masked(load_settings())
    if json:
        emit_json(values)
        return
    emit_table("Settings", ("setting", "value", "environment variable"), _rows(values))


def _rows(values: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, object, str]]:
    for name, value in values.items():
        here = (*path, name)
        if isinstance(value, dict) and _is_section(here):
            yield from _rows(value, here)
        else:
            yield ".".join(here), "unset" if value is None else value, environment_name(here)


def _is_section(path: tuple[str, ...]) -> bool:
    """True where settings stand under the name; False for one setting whose value is a table of names."""
    from pydantic import BaseModel

    from redraft_ops.settings import Settings

    model: Any = Settings
    for name in path:
        model = model.model_fields[name].annotation
    return isinstance(model, type) and issubclass(model, BaseModel)


def environment_name(path: tuple[str, ...]) -> str:
    """The variable that sets it. MLflow's own variable keeps its name."""
    if path == ("mlflow_tracking_uri",):
        return "MLFLOW_TRACKING_URI"
    return "REDRAFT_" + "__".join(path).upper()
