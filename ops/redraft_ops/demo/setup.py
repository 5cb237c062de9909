"""What a demo run needs before its first phase: a folder, settings, prompts, and processes that are ready."""

from __future__ import annotations

import http.client
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from redraft_ops.demo.client import Client
from redraft_ops.demo.plan import DemoPlan
from redraft_ops.demo.prompts import docstring_prompts, word_prompts
from redraft_ops.demo.traffic import Prompts
from redraft_ops.errors import DemoFailed, UsageError
from redraft_ops.processes import Children
from redraft_ops.settings import Settings, load_settings
from redraft_ops.valkey import free_port

MARKER = ".redraft-demo"
TOY_PROMPT_WORDS = 6


def prepare(out: Path) -> None:
    """An empty folder of our own. Raises UsageError for one that holds anything else than an earlier demo."""
    if out.exists() and any(out.iterdir()) and not (out / MARKER).exists():
        raise UsageError(f"{out} is not empty and not of an earlier demo; give another folder with --out")
    if out.exists():
        shutil.rmtree(out)
    out.mkdir(parents=True)
    (out / MARKER).touch()


def demo_settings(plan: DemoPlan, out: Path) -> Settings:
    """The settings of every process of the demo. What the plan does not name is the user's own."""
    models = dict(plan.models)
    if plan.pair == "learn":
        from redraft_models.toy import write_toy_pair

        target, draft = write_toy_pair(out / "toy", "learn")
        models = {"target": str(target), "draft": str(draft), **models}
    # The demo's traffic is too little to try or watch a draft on a share of it: the gate alone decides.
    canary = {"share": 0.0, "watch_share": 0.0}
    return private_settings(
        out,
        plan.domain,
        {
            "max_num_seqs": plan.clients,
            "num_speculative_tokens": plan.num_speculative_tokens,
            "canary": canary,
        },
        models=models,
        trainer=plan.trainer,
        gate=plan.gate,
    )


def private_settings(
    out: Path, domain: str, serving: Mapping[str, Any], **sections: Mapping[str, Any]
) -> Settings:
    """Settings of a deployment of its own in `out`: embedded servers, a free port, one domain, no key."""
    own = {"host": "127.0.0.1", "port": free_port(), "api_key": None, "api_keys": {}, "admin_key": None}
    return load_settings(
        {
            "redis_url": None,
            "mlflow_tracking_uri": None,
            "data_dir": out / "data",
            "default_domain": domain,
            "domains": [domain],
            "serving": {**own, **serving},
            **sections,
        }
    )


def start_processes(plan: DemoPlan, settings: Settings, children: Children) -> Client:
    """Start the serving and the training worker and wait until the first answers. Raises ChildEnded,
    DemoFailed.
    """
    children.start("serve", ["serve"], plan.serving_threads)
    children.start("worker", ["worker"], plan.worker_threads)
    url = f"http://127.0.0.1:{settings.serving.port}"
    client = Client(url, "", plan.domain, chat=plan.pair == "default")
    deadline = time.monotonic() + plan.ready_seconds
    while time.monotonic() < deadline:
        children.check()
        try:
            client.get("/ready")
            model = client.get("/v1/models")["data"][0]["id"]
            return Client(url, model, plan.domain, client.chat)
        except (OSError, http.client.HTTPException):
            time.sleep(0.2)
    raise DemoFailed(f"the serving worker was not ready within {plan.ready_seconds:.0f} s; read its log")


@dataclass(frozen=True)
class PromptSets:
    """Prompts by their use; none is in two sets, and none is repeated."""

    probes: list[str]
    traffic: list[str]
    fresh: list[str]
    spare: Prompts
    """For the streams that run while a draft is swapped."""


def choose_prompts(plan: DemoPlan) -> PromptSets:
    """The prompts of a run. Raises DemoFailed where this machine has too few."""
    needed = plan.probes + plan.prompts + plan.fresh_prompts
    if plan.pair == "learn":
        words = [f"{letter}{number}" for letter in "abcdefgh" for number in range(8)]
        prompts = word_prompts(plan.seed, words, TOY_PROMPT_WORDS, needed + 4000)
    else:
        prompts = docstring_prompts(plan.seed, plan.prompt_characters)
    if len(prompts) < needed:
        raise DemoFailed(f"the standard library here gives {len(prompts)} prompts, the demo needs {needed}")
    first, second = plan.probes, plan.probes + plan.prompts
    return PromptSets(
        prompts[:first], prompts[first:second], prompts[second:needed], Prompts(prompts[needed:])
    )
