"""The HTTP adapter against servers that answer in the layouts of vLLM, SGLang and llama.cpp."""
import http.server
import json
import threading

import pytest

from tandem_rl.engines.openai_http import HttpEngine
from tandem_rl.engines.protocol import Arguments
from tandem_rl.engines.requests import Refused, SampleRequest, ScoreRequest, ScoreRow


class Server(http.server.BaseHTTPRequestHandler):
    asked = []

    def log_message(self, *arguments):  # quiet
        pass

    def do_GET(self):
        self.answer({"data": [{"id": "the-model"}]})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.asked.append((self.path, body))
        if self.path == "/generate":
            meta = {"output_token_logprobs": [[-0.5, 7, None], [-0.25, 2, None]], "finish_reason": {"type": "stop"},
                    "input_token_logprobs": [[None, 5, None], [-1.0, 6, None], [-2.0, 7, None]]}
            return self.answer({"text": "", "meta_info": meta})
        if self.path == "/completion":
            return self.answer({"completion_probabilities": [{"id": 7, "prob": 0.5}, {"id": 8, "prob": 0.25}], "stop_type": "limit"})
        if "prompt_logprobs" in body:
            places = [None, *({str(token): {"logprob": -float(token)}} for token in body["prompt"][1:])]
            return self.answer({"choices": [{"prompt_logprobs": places}]})
        if body["max_tokens"] == 13:
            return self.answer({"error": "no"}, 400)
        choice = {"token_ids": [7, 8], "logprobs": {"token_logprobs": [-0.5, -0.25]}, "finish_reason": "length"}
        return self.answer({"choices": [choice] * body["n"]})

    def answer(self, body, code=200):
        text = json.dumps(body).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)


@pytest.fixture(scope="module")
def url():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def engine(url, **options):
    return HttpEngine(Arguments("none", "", {"url": url, **options}))


def test_vllm_is_asked_for_token_ids_and_log_probs(url):
    completions = engine(url).sample(SampleRequest([[5, 6]], n=2, temperature=0.7, seed=3))
    assert [(one.token_ids, one.logprobs, one.finish_reason) for one in completions] == [([7, 8], [-0.5, -0.25], "length")] * 2
    path, body = Server.asked[-1]
    assert path == "/v1/completions"
    assert body == {"model": "the-model", "prompt": [5, 6], "n": 2, "temperature": 0.7, "top_p": 1.0, "max_tokens": 64, "seed": 3,
                    "logprobs": 0, "return_token_ids": True}


def test_vllm_scores_by_prompt_log_probs_at_temperature_one_alone(url):
    score = engine(url).score(ScoreRequest([ScoreRow([5, 6, 7], 1)]))[0]
    assert score.logprobs == [-6.0, -7.0]
    with pytest.raises(Refused, match="at temperature 1 only"):
        engine(url).score(ScoreRequest([ScoreRow([5, 6, 7], 1)], 0.5))


def test_sglang_has_pairs_of_log_prob_and_id(url):
    sglang = engine(url, server="sglang")
    completion = sglang.sample(SampleRequest([[5, 6]]))[0]
    assert (completion.token_ids, completion.logprobs, completion.finish_reason) == ([7, 2], [-0.5, -0.25], "stop")
    assert sglang.score(ScoreRequest([ScoreRow([5, 6, 7], 1)]))[0].logprobs == [-1.0, -2.0]


def test_llama_cpp_has_probabilities_of_what_was_drawn_and_does_not_score(url):
    llama = engine(url, server="llama_cpp")
    completion = llama.sample(SampleRequest([[5, 6]]))[0]
    assert completion.token_ids == [7, 8]
    assert completion.logprobs == pytest.approx([-0.6931, -1.3863], abs=1e-4)
    with pytest.raises(Refused, match="does not return log-probs of a prompt"):
        llama.score(ScoreRequest([ScoreRow([5, 6, 7], 1)]))


def test_refusals_carry_what_the_server_said(url):
    with pytest.raises(Refused, match='HTTP 400: {"error": "no"}') as refused:
        engine(url).sample(SampleRequest([[5]], max_new_tokens=13))
    assert refused.value.kind == "invalid"
    with pytest.raises(Refused, match="raw log-probs were asked for.*ask for --logprobs processed.*--logprobs-mode processed_") as other:
        engine(url).sample(SampleRequest([[5]], logprobs="raw"))
    assert "--option" not in str(other.value)  # which `tandem drift compare` does not have
    with pytest.raises(Refused, match="url=http"):
        HttpEngine(Arguments("none"))
