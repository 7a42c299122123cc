from __future__ import annotations

import json

from ansible_collections.llmops.vllm.plugins.module_utils.engine_stream import collect


def event(**body):
    return f"data: {json.dumps(body)}\n".encode()


def delta(content=None, finish=None, logprobs=None, **more):
    choice = {"index": 0, "delta": {"content": content, **more}, "finish_reason": finish, "logprobs": logprobs}
    return event(choices=[choice])


def token(text, value=-0.5):
    return {"content": [{"token": text, "logprob": value}]}


DONE = b"data: [DONE]\n"


def test_a_chat_is_put_together():
    usage = event(choices=[], usage={"completion_tokens": 2})
    lines = [delta("", role="assistant"), b"\n", delta("Par", logprobs=token("Par")), b": a comment\n",
             delta("is", "stop", token("is")), usage, DONE]  # fmt: skip
    answer = collect(lines)
    (choice,) = answer.body()["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("Paris", "stop")
    assert [item["token"] for item in choice["logprobs"]["content"]] == ["Par", "is"]
    assert answer.body()["usage"]["completion_tokens"] == 2 and answer.complete and not answer.problem


def test_the_first_event_of_a_chat_is_no_token():
    assert not collect([delta("", role="assistant")]).has_tokens
    assert collect([delta("", role="assistant"), delta(None, reasoning="hm")]).has_tokens


def test_thoughts_and_a_tool_call_in_pieces_are_put_together():
    def call(**function):
        return delta(tool_calls=[{"index": 0, "function": function}])

    lines = [delta(reasoning_content="let "), delta(reasoning_content="me"), call(name="f", arguments=""),
             call(arguments='{"city": '), call(arguments='"Paris"}'), DONE]  # fmt: skip
    message = collect(lines).body()["choices"][0]["message"]
    assert message["reasoning_content"] == "let me" and message["content"] is None
    assert message["tool_calls"] == [
        {"type": "function", "function": {"name": "f", "arguments": '{"city": "Paris"}'}},
    ]


def test_a_completion_is_put_together():
    def piece(text, value):
        return event(choices=[{"text": text, "logprobs": {"tokens": [text], "token_logprobs": [value]}}])

    choice = collect([piece(" Par", -0.5), piece("is", float("nan")), DONE]).body()["choices"][0]
    assert choice["text"] == " Paris" and choice["logprobs"]["tokens"] == [" Par", "is"]
    assert choice["logprobs"]["token_logprobs"][1] != choice["logprobs"]["token_logprobs"][1]


def test_an_error_in_the_stream_and_a_torn_event_are_problems():
    assert collect([event(error={"message": "it died"}), DONE]).problem == "it died"
    assert collect([event(object="error", message="it died")]).problem == "it died"
    assert "no JSON" in collect([b'data: {"choices": [\n']).problem


def test_a_stream_without_an_end_is_not_complete():
    answer = collect([delta("Par")])
    assert not answer.complete and answer.body()["choices"][0]["message"]["content"] == "Par"
    assert collect([]).body()["choices"] == []
