"""A JSON answer that was put together has what the engine's own would have had."""

from __future__ import annotations

import json
from typing import Any

import pytest

from inference_fleet.gateway.assemble import Assembler, EngineError, Incomplete
from inference_fleet.gateway.usage import Tokens, UsageReports, tokens_of
from tests.gateway.harness import DONE, chunk, usage_chunk


def event(**fields: Any) -> bytes:
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


def delta(index: int = 0, finish: str | None = None, logprobs: Any = None, **fields: Any) -> bytes:
    choice = {"index": index, "delta": fields, "finish_reason": finish}
    if logprobs is not None:
        choice["logprobs"] = logprobs
    return event(id="chatcmpl-1", created=1, model="m", object="chat.completion.chunk", choices=[choice])


def text(index: int, part: str, finish: str | None = None, **fields: Any) -> bytes:
    choice = {"index": index, "text": part, "logprobs": fields.pop("logprobs", None), "finish_reason": finish}
    return event(id="cmpl-1", created=1, model="m", object="text_completion", choices=[choice], **fields)


def assemble(*events: bytes, chat: bool = True, choices: int = 1) -> tuple[dict[str, Any], Assembler]:
    assembler = Assembler(chat=chat, choices=choices)
    for one in events:
        assembler.feed(one)
    return json.loads(assembler.answer()), assembler


def test_content_usage_timings_and_names() -> None:
    answer, assembler = assemble(
        delta(role="assistant", content=None),
        delta(content="Grüß "),
        delta(content="Gott 🎈"),
        delta(finish="stop"),
        event(id="chatcmpl-1", created=1, model="m", system_fingerprint="b1", choices=[], timings={"n": 1},
              usage={"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}),
        DONE,
    )  # fmt: skip
    assert answer == {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "system_fingerprint": "b1",
        "timings": {"n": 1},
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "Grüß Gott 🎈"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7},
    }
    assert assembler.tokens() == Tokens(5, 0, 2)


def test_reasoning_is_kept_apart_from_content() -> None:
    answer, _ = assemble(delta(reasoning_content="Hm, "), delta(reasoning_content="so."), delta(content="42"),
                         delta(finish="stop"), DONE)  # fmt: skip
    assert answer["choices"][0]["message"] == {"role": "assistant", "content": "42", "reasoning_content": "Hm, so."}


def test_tool_calls_are_joined_by_their_index() -> None:
    answer, _ = assemble(
        delta(tool_calls=[{"index": 0, "id": "a", "type": "function", "function": {"name": "f", "arguments": ""}}]),
        delta(tool_calls=[{"index": 0, "function": {"arguments": '{"x"'}}]),
        delta(tool_calls=[{"index": 1, "id": "b", "type": "function", "function": {"name": "g", "arguments": "{}"}}]),
        delta(tool_calls=[{"index": 0, "function": {"arguments": ": 1}"}}]),
        delta(finish="tool_calls"),
        DONE,
    )
    assert answer["choices"][0]["finish_reason"] == "tool_calls"
    assert answer["choices"][0]["message"] == {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}},
            {"id": "b", "type": "function", "function": {"name": "g", "arguments": "{}"}},
        ],
    }


def test_log_probabilities_grow_and_are_absent_where_none_were_asked_for() -> None:
    answer, _ = assemble(delta(content="a", logprobs={"content": [{"token": "a"}]}),
                         delta(content="b", logprobs={"content": [{"token": "b"}]}), delta(finish="stop"), DONE)  # fmt: skip
    assert answer["choices"][0]["logprobs"] == {"content": [{"token": "a"}, {"token": "b"}]}
    answer, _ = assemble(chunk("a"), chunk(finish="stop"), DONE)
    assert "logprobs" not in answer["choices"][0]


def test_several_choices_in_any_order_and_their_counts() -> None:
    answer, assembler = assemble(
        chunk("b", 1), chunk("a", 0), chunk(index=1, finish="length"), usage_chunk(completion=2),
        chunk(index=0, finish="stop"), usage_chunk(completion=3), DONE, choices=2,
    )  # fmt: skip
    assert [(c["index"], c["message"]["content"], c["finish_reason"]) for c in answer["choices"]] == [
        (0, "a", "stop"),
        (1, "b", "length"),
    ]
    assert answer["usage"]["prompt_tokens"] == 7
    assert answer["usage"]["completion_tokens"] == 5
    assert assembler.tokens() == Tokens(7, 2, 5)


def test_text_completions_of_several_prompts() -> None:
    counts = {"prompt_tokens": 4, "completion_tokens": 1, "total_tokens": 5}
    answer, assembler = assemble(
        b"data: null\n\n",
        text(1, "y"),
        text(0, "x", logprobs={"tokens": ["x"], "token_logprobs": [-1.0]}),
        text(0, "", "stop", usage=counts),
        text(1, "", "length", usage=counts),
        DONE,
        chat=False,
    )
    assert answer["object"] == "text_completion"
    assert answer["choices"] == [
        {"index": 0, "text": "x", "logprobs": {"tokens": ["x"], "token_logprobs": [-1.0]}, "finish_reason": "stop"},
        {"index": 1, "text": "y", "logprobs": None, "finish_reason": "length"},
    ]
    assert assembler.tokens() == Tokens(8, 0, 2)


@pytest.mark.parametrize("missing", ["the end", "a finish reason", "everything"])
def test_an_answer_that_is_not_whole_is_none(missing: str) -> None:
    events = {
        "the end": [chunk("a"), chunk(finish="stop")],
        "a finish reason": [chunk("a"), DONE],
        "everything": [DONE],
    }
    with pytest.raises(Incomplete):
        assemble(*events[missing])


def test_an_error_inside_the_stream_is_the_answer() -> None:
    with pytest.raises(EngineError) as caught:
        assemble(chunk("a"), event(error={"code": 400, "message": "too long", "type": "invalid_request_error"}))
    assert caught.value.status == 400
    assert json.loads(caught.value.body)["error"]["message"] == "too long"


def test_running_counts_are_replaced_by_the_closing_ones() -> None:
    reports = UsageReports(1)
    reports.of_choice(0, {"prompt_tokens": 5, "completion_tokens": 1})
    reports.of_choice(0, {"prompt_tokens": 5, "completion_tokens": 2})
    assert reports.tokens() == Tokens(5, 0, 2)
    reports.closing({"prompt_tokens": 5, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 4}})
    assert reports.tokens() == Tokens(5, 4, 3)


def test_one_report_for_two_choices_is_taken_as_it_is() -> None:
    reports = UsageReports(2)
    reports.closing({"prompt_tokens": 5, "completion_tokens": 6})
    assert reports.tokens() == Tokens(5, 0, 6)


def test_counts_in_other_names_and_of_other_kinds() -> None:
    assert tokens_of({"input_tokens": 3, "output_tokens": 4, "input_tokens_details": {"cached_tokens": 1}}) == Tokens(
        3, 1, 4
    )
    assert tokens_of({"prompt_tokens": None, "completion_tokens": "x"}) == Tokens(0, 0, 0)
