"""What a round tells its training process: the specification, with the champion's files beside it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from redraft_models.errors import AdapterRejected, AdapterSpoilt
from redraft_models.registry import Registry, VersionInfo
from redraft_models.registry_download import MOST_COPIES

from redraft_trainer import evidence
from redraft_trainer.context import TrainContext
from redraft_trainer.identity import Identity
from redraft_trainer.launch import SPEC_FILE, threads
from redraft_trainer.plan import Plan
from redraft_trainer.sharing import collect_others


def write_spec(
    context: TrainContext,
    folder: Path,
    round_id: str,
    plan: Plan,
    identity: Identity,
    champion: VersionInfo | None,
) -> None:
    """Write `folder`/spec.json and all that it names. Raises what the registry and the stream raise."""
    spec = {
        "models": context.models.model_dump(),
        "trainer": context.trainer.model_dump(),
        "cache_dir": str(context.cache_dir),
        "threads": threads(context.trainer),
        "champion": fetch_champion(context.registry, folder, champion) if champion is not None else None,
        "other_domains": collect_others(context.client, plan, folder, context.trainer, identity),
        "provenance": evidence.provenance(context, round_id, plan, identity, champion),
    }
    (folder / SPEC_FILE).write_text(json.dumps(spec, indent=2))


def fetch_champion(registry: Registry, folder: Path, champion: VersionInfo) -> dict[str, Any]:
    """Where the champion's files are, or what is wrong with them: serving refuses them just so, and a
    round that fails over them would fail for ever. A copy that was spoilt on its way is followed by another
    one, at most MOST_COPIES in all. Raises RegistryError.
    """
    problem = None
    for _ in range(MOST_COPIES):
        try:
            found = registry.download(champion.domain, champion.version, folder / "champion")
            return {"version": champion.version, "folder": str(found), "problem": None}
        except AdapterSpoilt as error:
            problem = str(error)
        except AdapterRejected as error:
            problem = str(error)
            break
    return {"version": champion.version, "folder": None, "problem": problem}
