"""Tokenizers made on the spot, without any download, a scripted engine, and a real HTTP server around it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator

import httpx
import pytest
import uvicorn
from fastapi import FastAPI
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from .scripted import TWO_WORDS, ScriptedEngine, application

CORPUS = [
    "the cat sat on the mat and the dog saw it",
    "naïve café, über größe, déjà vu",
    "日本語のテキスト 日本語",
    "smile 🙂 and wave 👋🏽 then stop here",
    "def f(x):\n    return x + 1\n\n",
]


@pytest.fixture(scope="session")
def byte_tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer: every string has tokens, and a character may span several of them."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=330,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=[AddedToken("<|start|>", special=True), AddedToken("<|end|>", special=True)],
        show_progress=False,
    )
    core.train_from_iterator(CORPUS, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=core, bos_token="<|start|>", eos_token="<|end|>")


@pytest.fixture(scope="session")
def word_tokenizer() -> PreTrainedTokenizerFast:
    """Words a..g, each one token, joined by a space when decoded."""
    words = ["<pad>", "<eos>", "<unk>", *"abcdefg"]
    core = Tokenizer(models.WordLevel({word: index for index, word in enumerate(words)}, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=core, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>"
    )


@pytest.fixture(scope="module")
def serve() -> Iterator[Callable[[FastAPI], str]]:
    """`serve(app)` answers real HTTP from a thread; returns the address."""
    running: list[tuple[uvicorn.Server, threading.Thread]] = []

    def start(app: FastAPI) -> str:
        listener = socket.create_server(("127.0.0.1", 0))
        server = uvicorn.Server(
            uvicorn.Config(app, log_config=None, lifespan="off", timeout_graceful_shutdown=2)
        )
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        running.append((server, thread))
        return f"http://127.0.0.1:{listener.getsockname()[1]}"

    yield start
    for server, _ in running:
        server.should_exit = True
    for _, thread in running:
        thread.join(timeout=10)


@pytest.fixture
def engine() -> ScriptedEngine:
    """One that answers every choice with two words."""
    return ScriptedEngine(TWO_WORDS)


@pytest.fixture
def client(
    engine: ScriptedEngine, word_tokenizer: PreTrainedTokenizerFast, serve: Callable[[FastAPI], str]
) -> Iterator[httpx.Client]:
    """Of an application over `engine`."""
    with httpx.Client(base_url=serve(application(engine, word_tokenizer)), timeout=10) as made:
        yield made
