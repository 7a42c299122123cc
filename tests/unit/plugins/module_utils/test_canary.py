from __future__ import annotations

import json

import pytest
from ansible_collections.llmops.vllm.plugins.module_utils.canary import Canary, judge, parse_canary
from ansible_collections.llmops.vllm.plugins.module_utils.engine_api import Answer
from ansible_collections.llmops.vllm.plugins.module_utils.errors import InvalidInputError

CHAT = Canary(prompt="hi")
COMPLETION = Canary(prompt="hi", kind="completion")


def chat(text, tokens=(("a", -0.5), ("b", -1.5)), **message):
    logprobs = {"content": [{"token": token, "logprob": value} for token, value in tokens]}
    choice = {"message": {"role": "assistant", "content": text, **message}, "logprobs": logprobs}
    return Answer(200, {"choices": [choice], "usage": {"completion_tokens": len(tokens)}}, "")


def completion(text, tokens=("a", "b"), values=(-0.5, -1.5)):
    choice = {"text": text, "logprobs": {"tokens": list(tokens), "token_logprobs": list(values)}}
    return Answer(200, {"choices": [choice], "usage": {"completion_tokens": len(tokens)}}, "")


def problem(canary, answer):
    return judge(canary, answer, 0.1234567).problem


def test_a_good_answer_passes_in_both_forms():
    result = judge(CHAT, chat("Paris."), 0.1234567)
    assert (result.problem, result.text, result.tokens, result.seconds) == ("", "Paris.", 2, 0.123)
    assert problem(COMPLETION, completion("Paris.")) == ""


def test_a_request_is_greedy_and_asks_for_log_probabilities():
    assert CHAT.path == "/v1/chat/completions"
    assert CHAT.body("m") == {
        "model": "m", "max_tokens": 16, "temperature": 0, "stream": False,
        "messages": [{"role": "user", "content": "hi"}], "logprobs": True, "top_logprobs": 1,
    }  # fmt: skip
    assert COMPLETION.path == "/v1/completions"
    assert COMPLETION.body("m")["logprobs"] == 1 and COMPLETION.body("m")["prompt"] == "hi"
    assert "logprobs" not in Canary(prompt="hi", logprobs=False).body("m")
    assert Canary(prompt="hi", ignore_eos=True).body("m")["ignore_eos"] is True


def test_a_status_other_than_200_fails_with_the_engines_words():
    said = problem(CHAT, Answer(400, None, "Out of range float values are not JSON compliant: nan"))
    assert said.startswith("what the engine computes is NaN or infinite (HTTP 400: Out of range")
    assert problem(CHAT, Answer(500, None, "EngineCore encountered an issue.")) == (
        "HTTP 500: EngineCore encountered an issue."
    )
    assert problem(CHAT, Answer(0, None, "no answer within 300 s")) == "no answer within 300 s"


@pytest.mark.parametrize("body", [None, [], {}, {"choices": []}, {"choices": [None]}, {"choices": "x"}])
def test_an_answer_without_choices_fails(body):
    assert problem(CHAT, Answer(200, body, "")) == "the answer has no choices"


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "null", '"x"', "true", "-9999.0"])
def test_a_log_probability_that_is_no_finite_number_fails(value):
    body = json.loads(
        f'{{"choices": [{{"text": "!!", "logprobs": {{"tokens": ["!"], "token_logprobs": [{value}]}}}}]}}'
    )
    assert "log probability of token 1" in problem(COMPLETION, Answer(200, body, ""))


def test_missing_log_probabilities_fail_unless_they_were_not_asked_for():
    answer = Answer(200, {"choices": [{"text": "fine", "logprobs": None}]}, "")
    assert "no log probabilities" in problem(COMPLETION, answer)
    assert problem(Canary(prompt="hi", kind="completion", logprobs=False), answer) == ""


def test_exclamation_marks_alone_fail():
    assert "nothing but" in problem(COMPLETION, completion("!!!!!"))


def test_one_token_repeated_fails_and_can_be_allowed():
    answer = completion("aaaaaaaa", ["a"] * 8, [-0.1] * 8)
    assert "repeating one token ('a') 8 times" in problem(COMPLETION, answer)
    allowed = Canary(prompt="hi", kind="completion", allow_repetition=True)
    assert problem(allowed, answer) == ""
    assert "log probability" in problem(allowed, completion("aaaaaaaa", ["a"] * 8, [float("nan")] * 8))


def test_a_short_repetition_is_an_answer():
    assert problem(COMPLETION, completion("ha ha", ["ha", "ha"], [-0.1, -0.1])) == ""


@pytest.mark.parametrize("content", [None, ""])
def test_an_empty_answer_fails_unless_the_model_still_thinks(content):
    assert "has 0 characters" in problem(CHAT, chat(content))
    assert problem(CHAT, chat(content, reasoning="let me see")) == ""
    assert problem(CHAT, chat(content, reasoning_content="let me see")) == ""


def test_the_text_is_checked():
    assert "does not contain 'Paris'" in problem(Canary(prompt="hi", contains="Paris"), chat("Rome"))
    assert problem(Canary(prompt="hi", contains="Paris"), chat("It is Paris.")) == ""
    assert "does not match" in problem(Canary(prompt="hi", matches=r"\b5\b"), chat("15"))
    assert problem(Canary(prompt="hi", matches=r"\b5\b"), chat("so 5")) == ""
    assert "at least 9" in problem(Canary(prompt="hi", min_chars=9), chat("Rome"))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"prompt": ""}, "canary 2: prompt is empty"),
        ({}, "canary 2: prompt is empty"),
        ({"prompt": "x", "kind": "video"}, "kind 'video' is not one of chat, completion, image, reasoning, tool_call."),
        ({"prompt": "x", "max_tokens": -1}, "max_tokens must be at least 1"),
        ({"prompt": "x", "matches": "("}, "no regular expression"),
        ({"prompt": "x", "mathces": "y"}, "canary 2: mathces is no key of a canary; there are allow_repetition, "),
        ({"prompt": "x", "max_seconds": -1}, "max_seconds must not be negative"),
        ({"prompt": "x", "kind": "image", "image_color": "pink"}, "image_color 'pink' is not one of"),
        ({"prompt": "x", "tool": {"name": "f"}}, "tool and tool_arguments are for kind tool_call, not chat"),
        ({"prompt": "x", "kind": "tool_call", "tool": {"name": "a b"}}, "tool needs a name"),
        ({"prompt": "x", "kind": "tool_call", "tool_choice": "any"}, "tool_choice 'any'"),
        ({"prompt": "x", "kind": "tool_call", "tool": {"name": "f", "parameters": 1}}, "must be a JSON schema"),
        ({"prompt": "x", "kind": "tool_call", "tool_arguments": {"town": 1}}, "names town, which is no parameter of"),
    ],
)
def test_a_canary_that_cannot_be_right_is_refused(values, message):
    with pytest.raises(InvalidInputError) as error:
        parse_canary(values, 2)
    assert message in error.value.message and "\n" not in error.value.message


@pytest.mark.parametrize(("kind", "tokens"), [("chat", 16), ("tool_call", 512), ("reasoning", 2048), ("image", 64)])
def test_each_kind_leaves_the_model_the_tokens_that_it_needs(kind, tokens):
    assert Canary(prompt="hi", kind=kind).body("m")["max_tokens"] == tokens
    assert Canary(prompt="hi", kind=kind, max_tokens=9).body("m")["max_tokens"] == 9


def test_a_tool_is_offered_and_can_be_forced():
    body = Canary(prompt="hi", kind="tool_call").body("m")
    assert body["tools"][0]["function"]["name"] == "get_weather" and body["tool_choice"] == "auto"
    forced = Canary(prompt="hi", kind="tool_call", tool={"name": "f"}, tool_choice="named").body("m")
    assert forced["tools"] == [{"type": "function", "function": {"name": "f"}}]
    assert forced["tool_choice"] == {"type": "function", "function": {"name": "f"}}


def test_an_image_is_sent_with_the_question():
    picture, text = Canary(prompt="which colour?", kind="image").body("m")["messages"][0]["content"]
    assert picture["image_url"]["url"].startswith("data:image/png;base64,iVBOR")
    assert text == {"type": "text", "text": "which colour?"}


def test_only_a_canary_that_times_the_first_token_is_streamed():
    assert not Canary(prompt="hi", max_seconds=1, min_tokens_per_second=1).stream
    body = Canary(prompt="hi", max_first_token_seconds=1).body("m")
    assert body["stream"] is True and body["stream_options"] == {"include_usage": True}


def called(*calls, text=None):
    functions = [{"type": "function", "function": {"name": name, "arguments": arguments}} for name, arguments in calls]
    return chat(text, tool_calls=functions)


TOOL = Canary(prompt="hi", kind="tool_call", tool_arguments={"city": "Paris"})


def test_a_tool_call_is_read_and_shown():
    result = judge(TOOL, called(("get_weather", '{"city": "Paris", "unit": "C"}')), 0.1)
    assert (result.problem, result.text) == ("", 'get_weather({"city": "Paris", "unit": "C"})')


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
def test_a_reasoning_model_is_read_with_both_names_of_its_thoughts(name):
    canary = Canary(prompt="hi", kind="reasoning", contains="42")
    assert problem(canary, chat("42", **{name: "let me see"})) == ""


def test_hidden_reasoning_is_known_by_its_tokens():
    answer = chat("42")
    answer.body["usage"]["completion_tokens_details"] = {"reasoning_tokens": 90}
    assert problem(Canary(prompt="hi", kind="reasoning"), answer) == ""


def test_what_the_engine_said_during_a_stream_is_the_problem():
    answer = Answer(200, chat("Par").body, "EngineCore encountered an issue.", 0.2)
    result = judge(Canary(prompt="hi", max_first_token_seconds=1), answer, 0.5)
    assert (result.problem, result.first_token_seconds) == ("EngineCore encountered an issue.", 0.2)
