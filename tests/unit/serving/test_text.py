"""TextStream: the text of kept ids, cut at the same place as they are, whatever the rounds were."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pytest
from redraft_serving.text import MAX_CHARACTER_TOKENS, REPLACEMENT, TextStream
from transformers import PreTrainedTokenizerFast

Tokenizer = PreTrainedTokenizerFast


@dataclass
class Run:
    """What came out of one stream, piece by piece."""

    pieces: list[str]
    kept: list[int]
    stopped: str | None

    @property
    def text(self) -> str:
        return "".join(self.pieces)


def run(stream: TextStream, ids: Sequence[int], size: int) -> Run:
    """Push ids in rounds of `size`; finish as an engine does when the output ends by itself."""
    result = Run([], [], None)
    for at in range(0, len(ids), size):
        step = stream.push(ids[at : at + size])
        result.pieces.append(step.text)
        result.kept.append(step.total_kept)
        if step.stopped is not None:
            result.stopped = step.stopped
            return result
    result.pieces.append(stream.finish())
    result.kept.append(stream.total_kept)
    return result


def ids_of(tokenizer: Tokenizer, text: str) -> list[int]:
    return [int(i) for i in tokenizer(text, add_special_tokens=False)["input_ids"]]


def random_ids(tokenizer: Tokenizer, seed: int, length: int) -> list[int]:
    chosen = random.Random(seed)
    return [chosen.randrange(len(tokenizer)) for _ in range(length)]


TEXTS = [
    "naïve café, über größe",
    "日本語のテキスト",
    "🙂👋🏽 done 👩‍👩‍👧",
    "def f(x):\n    return x + 1\n\n",
    "  leading and trailing  ",
    "e\u0301 \u00a0\u3000 spaces",
    "",
]


@pytest.mark.parametrize("size", [1, 2, 3, 8])
@pytest.mark.parametrize("text", TEXTS)
def test_text_is_the_decoded_ids(byte_tokenizer: Tokenizer, text: str, size: int) -> None:
    ids = ids_of(byte_tokenizer, text)
    result = run(TextStream(byte_tokenizer), ids, size)
    assert result.text == text == byte_tokenizer.decode(ids)
    assert result.kept[-1] == len(ids)
    assert not any(REPLACEMENT in piece for piece in result.pieces)


def test_a_character_spans_several_tokens(byte_tokenizer: Tokenizer) -> None:
    """Guards the tests above: the tokenizer splits characters, and a naive decoder breaks them."""
    ids = ids_of(byte_tokenizer, "🙃")
    assert len(ids) > 1
    assert REPLACEMENT in "".join(byte_tokenizer.decode([i]) for i in ids)
    stream = TextStream(byte_tokenizer)
    steps = [stream.push([i]) for i in ids]
    assert [step.text for step in steps] == [""] * (len(ids) - 1) + ["🙃"]
    assert [step.total_kept for step in steps] == [0] * (len(ids) - 1) + [len(ids)]


@pytest.mark.parametrize("size", [1, 2, 5, 16])
@pytest.mark.parametrize("skip", [True, False])
@pytest.mark.parametrize("seed", range(20))
def test_any_ids_decode_as_the_tokenizer_does(
    byte_tokenizer: Tokenizer, seed: int, skip: bool, size: int
) -> None:
    ids = random_ids(byte_tokenizer, seed, 200)
    result = run(TextStream(byte_tokenizer, skip_special_tokens=skip), ids, size)
    assert result.text == byte_tokenizer.decode(ids, skip_special_tokens=skip)
    assert result.kept[-1] == len(ids)


def test_endless_broken_bytes_keep_flowing(byte_tokenizer: Tokenizer) -> None:
    """A model that emits only continuation bytes still shows text, and the window stays short."""
    byte = byte_tokenizer.convert_tokens_to_ids("¢")  # byte 0xA2 in the byte-level alphabet
    stream = TextStream(byte_tokenizer)
    shown = "".join(stream.push([byte]).text for _ in range(500))
    assert len(shown) > 490
    assert len(stream._window) <= 2 * (MAX_CHARACTER_TOKENS + 1)
    assert shown + stream.finish() == byte_tokenizer.decode([byte] * 500)


def test_special_tokens_give_no_text_and_count(byte_tokenizer: Tokenizer) -> None:
    end = byte_tokenizer.eos_token_id
    ids = [end, *ids_of(byte_tokenizer, "the cat"), end, end]
    skipping = run(TextStream(byte_tokenizer), ids, 1)
    assert (skipping.text, skipping.kept[-1]) == ("the cat", len(ids))
    showing = run(TextStream(byte_tokenizer, skip_special_tokens=False), ids, 1)
    assert showing.text == "<|end|>the cat<|end|><|end|>"


def test_many_special_tokens_do_not_grow_the_window(byte_tokenizer: Tokenizer) -> None:
    stream = TextStream(byte_tokenizer)
    stream.push([byte_tokenizer.eos_token_id] * 1000)
    assert len(stream._window) < 8


@pytest.mark.parametrize("size", [1, 2, 3, 6])
@pytest.mark.parametrize(
    ("stop", "text", "kept"),
    [
        (("c",), "b ", 1),
        (("c d",), "b ", 1),
        (("b c d e f",), "", 0),
        (("d e", "c d"), "b ", 1),
        (("f", "e f"), "b c d ", 3),
        ((" c",), "b", 1),
        (("g",), "b c d e f", 5),
        (("f g",), "b c d e f", 5),
    ],
)
def test_stop_strings_over_words(
    word_tokenizer: Tokenizer, stop: tuple[str, ...], text: str, kept: int, size: int
) -> None:
    """text, ids and counts are cut at one place, the same for every size of a round."""
    result = run(TextStream(word_tokenizer, stop), ids_of(word_tokenizer, "b c d e f"), size)
    assert (result.text, result.kept[-1]) == (text, kept)
    shown = ""
    for piece in result.pieces:
        shown += piece
        assert not any(one in shown for one in stop)


@pytest.mark.parametrize("size", [1, 3, 8])
def test_include_the_stop_string(word_tokenizer: Tokenizer, size: int) -> None:
    stream = TextStream(word_tokenizer, ("c d",), include_stop=True)
    result = run(stream, ids_of(word_tokenizer, "b c d e f"), size)
    assert (result.text, result.kept[-1], result.stopped) == ("b c d", 3, "c d")


def test_included_stop_drops_what_follows(byte_tokenizer: Tokenizer) -> None:
    """A special token after the stop string, in the same round, was never asked for."""
    ids = [*ids_of(byte_tokenizer, "xy."), byte_tokenizer.eos_token_id]
    for size in (1, 9):
        result = run(TextStream(byte_tokenizer, (".",), include_stop=True), ids, size)
        assert (result.text, result.kept[-1]) == ("xy.", len(ids) - 1)


def test_the_first_completed_stop_wins_whatever_the_order(word_tokenizer: Tokenizer) -> None:
    ids = ids_of(word_tokenizer, "b c d e f")
    for stops in (("c d e", "d"), ("d", "c d e")):
        result = run(TextStream(word_tokenizer, stops), ids, 5)
        assert (result.text, result.stopped) == ("b c ", "d")


def test_a_false_start_of_a_stop_string_is_shown_later(byte_tokenizer: Tokenizer) -> None:
    """Overlapping prefixes: 'aab' inside 'aaab' starts at the second a."""
    ids = [byte_tokenizer.convert_tokens_to_ids(c) for c in "xaaab"]
    stream = TextStream(byte_tokenizer, ("aab",))
    assert [stream.push([i]).text for i in ids] == ["x", "", "", "a", ""]
    assert (stream.total_kept, stream.finish()) == (2, "")


def test_held_text_is_flushed_at_the_end(byte_tokenizer: Tokenizer) -> None:
    stream = TextStream(byte_tokenizer, ("END",))
    ids = [byte_tokenizer.convert_tokens_to_ids(c) for c in "xEN"]
    step = stream.push(ids)
    assert (step.text, step.total_kept) == ("x", 1)
    assert (stream.finish(), stream.total_kept) == ("EN", 3)


def test_a_token_is_kept_where_its_text_begins_before_the_cut(byte_tokenizer: Tokenizer) -> None:
    """A stop string inside one token leaves that token, with its text cut."""
    (token,) = ids_of(byte_tokenizer, " the")
    letter = byte_tokenizer.convert_tokens_to_ids("x")
    result = run(TextStream(byte_tokenizer, ("e",)), [letter, token], 2)
    assert (result.text, result.kept[-1], result.stopped) == ("x th", 2, "e")


@pytest.mark.parametrize("size", [1, 2, 7])
def test_stop_string_of_broken_up_characters(byte_tokenizer: Tokenizer, size: int) -> None:
    ids = ids_of(byte_tokenizer, "ab🙃cd🙃")
    first = byte_tokenizer.decode(ids).index("🙃")
    result = run(TextStream(byte_tokenizer, ("🙃",)), ids, size)
    assert (result.text, result.stopped) == ("ab", "🙃")
    assert byte_tokenizer.decode(ids[: result.kept[-1]]) == "ab"
    assert first == 2


@pytest.mark.parametrize("size", [1, 4])
def test_min_tokens_lets_early_stop_strings_pass(word_tokenizer: Tokenizer, size: int) -> None:
    ids = ids_of(word_tokenizer, "b c b c d")
    result = run(TextStream(word_tokenizer, ("c",), min_tokens=2), ids, size)
    assert (result.text, result.kept[-1]) == ("b c b ", 3)
    straddling = run(TextStream(word_tokenizer, ("c b",), min_tokens=2), ids, size)
    assert (straddling.text, straddling.kept[-1]) == ("b ", 1)


def test_after_a_stop_nothing_more(word_tokenizer: Tokenizer) -> None:
    stream = TextStream(word_tokenizer, ("c",))
    stream.push(ids_of(word_tokenizer, "b c"))
    step = stream.push(ids_of(word_tokenizer, "d e"))
    assert (step.text, step.total_kept, stream.finish(), stream.total_kept) == ("", 1, "", 1)


def test_empty_stop_string_is_refused(word_tokenizer: Tokenizer) -> None:
    with pytest.raises(ValueError, match="empty"):
        TextStream(word_tokenizer, ("",))


def fuzz() -> Iterator[tuple[int, tuple[str, ...], bool]]:
    chosen = random.Random(7)
    for seed in range(60):
        stops = tuple("".join(chosen.choices("ab ", k=chosen.randint(1, 4))) for _ in range(3))
        yield seed, stops, chosen.random() < 0.5


def reference(
    tokenizer: Tokenizer, ids: list[int], stops: tuple[str, ...], include: bool
) -> tuple[str, bool]:
    """Text by whole decoding, one token at a time: the slow way that cannot be wrong about rounds."""
    text = tokenizer.decode(ids)
    ends = [(text.index(s) + len(s), text.index(s)) for s in stops if s in text]
    if not ends:
        return text, False
    end, start = min(ends)
    return text[: end if include else start], True


@pytest.mark.parametrize("case", list(fuzz()), ids=lambda case: str(case[0]))
def test_stops_agree_with_whole_decoding(
    byte_tokenizer: Tokenizer, case: tuple[int, tuple[str, ...], bool]
) -> None:
    seed, stops, include = case
    chosen = random.Random(seed)
    alphabet = [byte_tokenizer.convert_tokens_to_ids(c) for c in ("a", "b", "Ġ", "Ġthe", "c")]
    ids = [chosen.choice(alphabet) for _ in range(60)]
    text, stopped = reference(byte_tokenizer, ids, stops, include)
    results = [run(TextStream(byte_tokenizer, stops, include), ids, size) for size in (1, 2, 3, 5, 60)]
    assert {result.text for result in results} == {text}
    assert {result.stopped is not None for result in results} == {stopped}
    assert len({result.kept[-1] for result in results}) == 1
    for result in results:
        assert result.kept == sorted(result.kept)
        kept = byte_tokenizer.decode(ids[: result.kept[-1]])
        assert kept.startswith(text) or kept == text.rstrip() or (kept + " ").startswith(text)


def naive_stop(tokenizer: Tokenizer, ids: list[int], stop: str, size: int) -> str:
    """The wrong build: looks for the stop string only in what one round brought."""
    text = ""
    for at in range(0, len(ids), size):
        piece = tokenizer.decode(ids[at : at + size])
        if stop in piece:
            return text + piece[: piece.index(stop)]
        text += (" " if text else "") + piece
    return text


def test_the_spanning_stop_catches_a_wrong_build(word_tokenizer: Tokenizer) -> None:
    ids = ids_of(word_tokenizer, "b c d e f")
    assert naive_stop(word_tokenizer, ids, "c d", 2) != "b "
    assert run(TextStream(word_tokenizer, ("c d",)), ids, 2).text == "b "
