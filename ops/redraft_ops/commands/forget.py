"""`redraft forget`: delete what was asked to be forgotten."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from redraft_ops.options import AsJson
from redraft_ops.output import emit_json, note

if TYPE_CHECKING:
    from redraft_queue.forget import Forgotten

    from redraft_ops.forgetting import Seen
    from redraft_ops.stack import Stack

Text = str | None


def forget(
    request: Annotated[Text, typer.Option(help="Samples of this request, by the `id` of its answer.")] = None,
    user: Annotated[Text, typer.Option(help="Samples of this user, as requests name it in `user`.")] = None,
    domain: Annotated[Text, typer.Option(help="All samples and the schedule of this domain.")] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Delete without asking.")] = False,
    json: AsJson = False,
) -> None:
    """Delete samples from stream and dead letters, and list the versions that had seen them.

    A trained version is not untrained by it. What a serving worker still buffers is stored a moment later,
    and a running round has its samples already: repeat the command when a round has ended. Samples that were
    trimmed before are gone, and which versions had seen those can't be told.
    """
    from redraft_ops.settings import load_settings
    from redraft_ops.stack import open_stack

    what = _what(request, user, domain)
    settings = load_settings()
    _confirm(what, yes)
    with open_stack(settings) as stack:
        stack.require_redis()
        done = _delete(stack, request, user, domain)
        seen, remark = _seen(stack, done)
    if json:
        emit_json(_document(done, seen, remark))
    else:
        _say(what, done, seen, remark)


def _what(request: Text, user: Text, domain: Text) -> str:
    from redraft_queue.keys import check_name

    from redraft_ops.errors import UsageError

    given = {"request": request, "user": user, "domain": domain}
    named = [f"{kind} {value}" for kind, value in given.items() if value]
    if len(named) != 1:
        raise UsageError("name what is to be forgotten by exactly one of --request, --user and --domain")
    if domain:
        check_name(domain)
    return named[0]


def _confirm(what: str, yes: bool) -> None:
    from redraft_ops.errors import UsageError

    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError(f"deleting the samples of {what} can't be undone; say --yes to do it")
    typer.confirm(f"Delete all samples of {what}? This can't be undone.", abort=True, err=True)


def _delete(stack: Stack, request: Text, user: Text, domain: Text) -> list[Forgotten]:
    from redraft_queue.forget import forget_domain, forget_request, forget_user
    from redraft_queue.records import user_hash
    from redraft_queue.stream import connect

    client = connect(stack.redis_url, stack.settings.queue)
    if domain:
        return [forget_domain(client, domain)]
    domains = sorted({*stack.stream().domains(), *stack.settings.domains})
    if request:
        found = [forget_request(client, name, request) for name in domains]
    else:
        found = [forget_user(client, name, user_hash(user or "")) for name in domains]
    return [one for one in found if one.samples or one.dead_letters]


def _seen(stack: Stack, done: Sequence[Forgotten]) -> tuple[list[Seen], str | None]:
    """The versions, or why they can't be told: the samples are gone all the same."""
    from redraft_models.errors import RegistryError

    from redraft_ops.forgetting import copies_in, seen_by

    touched = [one for one in done if one.ranges]
    if not touched:
        return [], None
    try:
        registry = stack.registry()
        names = {*registry.domains(), *(one.domain for one in touched)}
        versions = {name: registry.versions(name) for name in names}
        found = copies_in(
            versions, [seen_by(one.domain, versions[one.domain], one.ranges) for one in touched]
        )
    except RegistryError as error:
        return [], f"the samples are deleted, but the versions that had seen them are not known: {error}"
    return [one for one in found if one.trained or one.may_have], None


def _document(done: Sequence[Forgotten], seen: Sequence[Seen], remark: str | None) -> dict[str, Any]:
    return {
        "deleted": [one.to_dict() for one in done],
        "versions": [
            {"domain": one.domain, "trained": list(one.trained), "may_have": list(one.may_have)}
            for one in seen
        ],
        "remark": remark,
    }


def _say(what: str, done: Sequence[Forgotten], seen: Sequence[Seen], remark: str | None) -> None:
    from redraft_ops.forgetting import ADVICE

    if not done:
        typer.echo(f"nothing is kept of {what}")
    for one in done:
        typer.echo(f"domain {one.domain}: {one.samples} samples and {one.dead_letters} dead letters deleted")
    for versions in seen:
        if versions.trained:
            typer.echo(f"domain {versions.domain}: trained on them: {_list(versions.trained)}")
        if versions.may_have:
            typer.echo(
                f"domain {versions.domain}: may have replayed or inherited them: {_list(versions.may_have)}"
            )
    if seen:
        note(ADVICE)
    if remark:
        note(remark)


def _list(numbers: Sequence[int]) -> str:
    return f"version{'' if len(numbers) == 1 else 's'} {', '.join(map(str, numbers))}"
