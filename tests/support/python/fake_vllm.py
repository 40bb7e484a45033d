"""A server that answers as vLLM 0.32 does on the routes that a run uses (trainer/foreign), over `transformers` in float32: groups of
completions with token ids and log-probs, scores of prompts, pause, weights from a directory, marks.

    python fake_vllm.py --model DIR --port PORT [--logprobs-mode raw_logprobs] [--no-dev-mode] [--log FILE]

It holds what vLLM holds of weights and marks, and loses both when it is killed. --log gets a JSON line for each control call.
"""
import argparse
import hashlib
import http.server
import json
import threading
import urllib.parse

import torch
import transformers


class Engine:
    def __init__(self, arguments):
        self.arguments = arguments
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(arguments.model)
        self.mark, self.paused = "default", False
        self.running = threading.Lock()  # held while a request computes: a pause waits for it
        self.load(arguments.model)

    def load(self, directory):
        self.model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
        self.eos = {i for i in [self.model.generation_config.eos_token_id] if isinstance(i, int)}

    @torch.inference_mode()
    def choice(self, body, index):
        """One completion, drawn token by token from the whole sequence: small models need no cache."""
        ids, drawn, logprobs = list(body["prompt"]), [], []
        generator = torch.Generator().manual_seed(body.get("seed", 0) + index)
        temperature = body["temperature"]
        finish = "length"
        while len(drawn) < body["max_tokens"]:
            logits = self.model(torch.tensor([ids])).logits[0, -1].float()
            raw = torch.log_softmax(logits, -1)
            processed = torch.log_softmax(logits / temperature, -1) if temperature > 0 else raw
            token = (int(torch.multinomial(processed.exp(), 1, generator=generator)) if temperature > 0
                     else int(logits.argmax()))
            given = raw if self.arguments.logprobs_mode == "raw_logprobs" else processed
            logprobs.append(float(given[token]))
            drawn.append(token)
            ids.append(token)
            if token in self.eos and not body.get("ignore_eos"):
                finish = "stop"
                break
        return {"index": index, "text": self.tokenizer.decode(drawn, skip_special_tokens=True), "finish_reason": finish,
                "stop_reason": None, "token_ids": drawn, "prompt_logprobs": self.prompt_logprobs(body),
                "logprobs": {"token_logprobs": logprobs, "tokens": [f"token_id:{i}" for i in drawn]}}

    @torch.inference_mode()
    def prompt_logprobs(self, body):
        if body.get("prompt_logprobs") is None:
            return None
        ids = body["prompt"]
        scores = torch.log_softmax(self.model(torch.tensor([ids])).logits[0].float(), -1)
        return [None] + [{str(i): {"logprob": float(scores[t, i]), "rank": 1, "decoded_token": ""}}
                         for t, i in enumerate(ids[1:])]

    def complete(self, body):
        with self.running:
            return {"object": "text_completion", "model": self.arguments.model,
                    "choices": [self.choice(body, index) for index in range(body.get("n", 1))]}


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, body, status=200):
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def note(self, call, body):
        if self.server.arguments.log:
            with open(self.server.arguments.log, "a", encoding="utf-8") as file:
                file.write(json.dumps({"call": call, **body}) + "\n")

    def do_GET(self):
        path, engine, arguments = self.path.partition("?")[0], self.server.engine, self.server.arguments
        development = {
            "/server_info": {"vllm_config": {"model_config": {"dtype": "torch.float32",
                                                              "logprobs_mode": arguments.logprobs_mode}}},
            "/weight_info": {"weight_version": engine.mark}, "/is_paused": {"is_paused": engine.paused}}
        plain = {"/health": {}, "/version": {"version": "0.32.0"},
                 "/v1/models": {"data": [{"id": arguments.model, "root": arguments.model, "max_model_len": 512}]}}
        known = plain | ({} if arguments.no_dev_mode else development)
        if path in known:
            return self.answer(known[path])
        return self.answer({"detail": "Not Found"}, 404)

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])) or b"{}")
        path, _, query = self.path.partition("?")
        engine = self.server.engine
        if path == "/v1/completions":
            return self.answer(engine.complete(body))
        if path == "/tokenize":
            return self.answer({"tokens": engine.tokenizer.encode(body["prompt"], add_special_tokens=False)})
        if self.server.arguments.no_dev_mode:
            return self.answer({"detail": "Not Found"}, 404)
        self.note(path, body | {"query": dict(urllib.parse.parse_qsl(query))})
        if path == "/pause":
            with engine.running:
                engine.paused = True
            return self.answer({"status": "paused"})
        if path == "/resume":
            engine.paused = False
            return self.answer({"status": "resumed"})
        if path == "/collective_rpc" and body["method"] == "reload_weights":
            assert engine.paused, "weights were loaded while tokens could be sampled"
            engine.load(body["kwargs"]["weights_path"])
            return self.answer({"results": [None]})
        if path == "/reset_prefix_cache":
            return self.answer({"success": True})
        if path == "/weight_checker":
            return self.answer({"checksums": {f"dp0:pp0:pcp0:tp0:{name}": hashlib.sha256(
                parameter.detach().contiguous().numpy().tobytes()).hexdigest()
                for name, parameter in engine.model.named_parameters()}})
        if path == "/update_weight_version":
            engine.mark = body["new_version"]
            return self.answer({"success": True, "new_version": engine.mark})
        return self.answer({"detail": "Not Found"}, 404)


def main(words=None):
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--logprobs-mode", default="processed_logprobs")
    parser.add_argument("--no-dev-mode", action="store_true")
    parser.add_argument("--log")
    arguments = parser.parse_args(words)
    torch.set_num_threads(1)
    engine = Engine(arguments)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", arguments.port), Handler)
    server.engine, server.arguments = engine, arguments
    server.serve_forever()


if __name__ == "__main__":
    main()
