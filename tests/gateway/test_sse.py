"""Events are found however the bytes arrive, and the bytes are never changed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference_fleet.gateway import sse

EVENTS = (
    'data: {"choices":[{"delta":{"content":"äöü 🎈 \\n\\n"}}]}\n\n'.encode(),
    b": a comment\n\n",
    b'event: x\r\ndata: {"a":1}\r\ndata: {"b":2}\r\n\r\n',
    b'data: {"choices":[],"usage":{"prompt_tokens":1}}\n\n',
    b"data: [DONE]\n\n",
)
STREAM = b"".join(EVENTS)


def feed(pieces: list[bytes]) -> tuple[list[bytes], bytes]:
    splitter = sse.EventSplitter()
    blocks = [block for piece in pieces if (block := splitter.feed(piece))]
    return blocks, splitter.rest


def test_an_event_is_found_whole_when_the_stream_is_cut_at_any_two_places() -> None:
    for first in range(len(STREAM) + 1):
        for second in range(first, len(STREAM) + 1):
            blocks, rest = feed([STREAM[:first], STREAM[first:second], STREAM[second:]])
            assert b"".join(blocks) == STREAM
            assert rest == b""
            assert [event for block in blocks for event in sse.split_events(block)] == list(EVENTS)


def test_an_event_is_found_whole_when_bytes_come_one_by_one() -> None:
    blocks, rest = feed([STREAM[index : index + 1] for index in range(len(STREAM))])
    assert (blocks, rest) == (list(EVENTS), b"")


@given(st.lists(st.binary(max_size=40).map(lambda data: data.replace(b"\r", b"x"))), st.data())
def test_what_goes_in_comes_out_in_order_and_only_whole_events(parts: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(part + b"\n\n" for part in parts) + b"unfinished"
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    pieces = [stream[start:end] for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    blocks, rest = feed(pieces)
    assert b"".join(blocks) + rest == stream
    assert all(block.endswith(b"\n") for block in blocks)
    assert b"\n\n" not in rest


def test_an_event_without_an_end_is_given_up() -> None:
    splitter = sse.EventSplitter()
    with pytest.raises(sse.NotAnEventStream):
        for _ in range(sse.LONGEST_EVENT_BYTES // (1 << 20) + 1):
            splitter.feed(b"x" * (1 << 20))


@pytest.mark.parametrize(
    ("event", "data"),
    [
        (b"data: one\n\n", b"one"),
        (b"data:one\n\n", b"one"),
        (b"data: one\ndata: two\n\n", b"one\ntwo"),
        (b"id: 1\r\ndata: one\r\n\r\n", b"one"),
        (b": comment\n\n", b""),
        (b"\ndata: one\n\n", b"one"),
        (b"data: a data: b\n\n", b"a data: b"),
    ],
)
def test_data_of_an_event(event: bytes, data: bytes) -> None:
    assert sse.data_of(event) == data


def test_generated_text_is_not_taken_for_facts() -> None:
    text = b'data: {"choices":[{"delta":{"content":"\\"usage\\": {\\"error\\": 1}"}}]}\n\n'
    assert not sse.may_hold_facts(text)
    assert sse.usage_of(text) is None
    assert not sse.is_error(text)


def test_usage_and_whether_it_stands_alone() -> None:
    alone = b'data: {"choices":[],"usage":{"prompt_tokens":1}}\n\n'
    assert sse.usage_of(alone) == ({"prompt_tokens": 1}, True)
    with_choice = b'data: {"choices":[{"text":"","index":3}],"usage":{"prompt_tokens":1}}\n\n'
    assert sse.usage_of(with_choice) == ({"prompt_tokens": 1}, False)
    assert sse.choice_index(with_choice) == 3
    assert sse.usage_of(b'data: {"choices":[],"usage":null}\n\n') is None
    wrapped = b'data: {"type":"response.completed","response":{"usage":{"input_tokens":1}}}\n\n'
    assert sse.usage_of(wrapped) == ({"input_tokens": 1}, False)


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        (b'data: {"choices":[{"delta":{"role":"assistant","content":null}}]}\n\n', False),
        (b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n', False),
        (b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n', True),
        (b'data: {"choices":[{"delta":{"reasoning_content":"a"}}]}\n\n', True),
        (b'data: {"choices":[{"delta":{"tool_calls":[{"index":0}]}}]}\n\n', True),
        (b'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\n', False),
        (b'data: {"choices":[{"text":"a"}]}\n\n', True),
        (b'data: {"choices":[{"text":""}]}\n\n', False),
        (b'data: {"type":"response.output_text.delta","delta":"a"}\n\n', True),
        (b"data: null\n\n", False),
        (b": comment\n\n", False),
    ],
)
def test_the_role_alone_is_no_token(event: bytes, expected: bool) -> None:
    assert sse.has_token(event) is expected
