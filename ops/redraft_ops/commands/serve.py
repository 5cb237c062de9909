"""`redraft serve`: one serving worker with the OpenAI API."""

from __future__ import annotations

from typing import Annotated, Any

import typer

Text = str | None
Number = int | None


def serve(
    target: Annotated[
        Text, typer.Option(help='Model to serve: "default", hub id, folder or .gguf file.')
    ] = None,
    draft: Annotated[Text, typer.Option(help='Model that proposes, or "none" for plain decoding.')] = None,
    num_speculative_tokens: Annotated[
        Text, typer.Option(help='Tokens proposed per round: "auto", or a number.')
    ] = None,
    host: Annotated[Text, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[Number, typer.Option(help="Port to listen on; 0 takes a free one.")] = None,
    served_model_name: Annotated[Text, typer.Option(help="Model id that clients name.")] = None,
    max_model_len: Annotated[Number, typer.Option(help="Tokens of prompt and answer together.")] = None,
    max_num_seqs: Annotated[Number, typer.Option(help="Requests that generate at the same time.")] = None,
    dtype: Annotated[Text, typer.Option(help="auto, float32, bfloat16 or float16.")] = None,
    device: Annotated[Text, typer.Option(help="auto, cpu or cuda[:N].")] = None,
    stream_interval: Annotated[
        Number, typer.Option(help="Tokens in one piece of a stream, at least; 1: each round's.")
    ] = None,
    redis_url: Annotated[Text, typer.Option(help="Redis for samples; default: an embedded Valkey.")] = None,
    api_key: Annotated[
        Text, typer.Option(help="Key that clients must send; better set in REDRAFT_SERVING__API_KEY.")
    ] = None,
) -> None:
    """Serve the target with its draft, log samples, and follow the champion of each domain."""
    from redraft_ops.logs import configure_logging
    from redraft_ops.settings import load_settings

    models = {
        "target": target,
        "draft": draft,
        "dtype": dtype,
        "device": device,
        "max_model_len": max_model_len,
    }
    serving = {
        "host": host,
        "port": port,
        "served_model_name": served_model_name,
        "max_num_seqs": max_num_seqs,
        "num_speculative_tokens": num_speculative_tokens,
        "stream_interval": stream_interval,
        "api_key": api_key,
    }
    given = {"models": _given(models), "serving": _given(serving), **_given({"redis_url": redis_url})}
    settings = load_settings({name: value for name, value in given.items() if value})
    from redraft_ops.stack import open_stack

    configure_logging()
    with open_stack(settings) as stack:
        from redraft_ops.launch import run_serving

        run_serving(stack)


def _given(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}
