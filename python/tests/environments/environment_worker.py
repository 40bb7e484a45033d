"""A process of tandem_rl.environments.worker, spoken with as the trainer does. Used by the tests beside it."""
import json
import os
import signal
import subprocess
import sys

PACKAGE = os.path.join(os.environ["TANDEM_SOURCE"], "python")


class EnvironmentWorker:
    """Plays `environment`, whose code is `text` in the file my_env.py of `folder`."""

    def __init__(self, folder, environment, text="", kwargs=None, chat_template="", python=sys.executable):
        (folder / "my_env.py").write_text(text, encoding="utf-8")
        to_worker, self.to_worker = os.pipe()
        from_worker, to_us = os.pipe()
        script = f"exec {python} -m tandem_rl.environments.worker 3<&{to_worker} 4>&{to_us}"
        self.process = subprocess.Popen(["bash", "-c", script], cwd=folder, env={**os.environ, "PYTHONPATH": PACKAGE},
                                        pass_fds=(to_worker, to_us), start_new_session=True, stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE, text=True)
        os.close(to_worker)
        os.close(to_us)
        self.replies = os.fdopen(from_worker, encoding="utf-8")
        self.write({"environment": environment, "kwargs": kwargs or {}, "chat_template": chat_template, "max_turns": 8})
        self.hello = self.read()

    def write(self, line):
        os.write(self.to_worker, (json.dumps(line) + "\n").encode())

    def read(self):
        return json.loads(self.replies.readline())

    def open(self, number=1, row=None, prompt=None, seed=5, history=()):
        self.write({"open": number, "row": row or {}, "prompt": prompt, "seed": seed, "history": list(history)})
        return self.read()

    def send(self, text, turn=1, number=1, is_last=False):
        self.write({"step": number, "turn": turn, "text": text, "finish_reason": "length" if is_last else "stop",
                    "is_last": is_last})

    def step(self, text, turn=1, number=1, is_last=False):
        """The reply without its seconds."""
        self.send(text, turn, number, is_last)
        reply = self.read()
        if "error" not in reply:
            assert reply.pop("seconds") >= 0
        return reply

    def close(self, number=1):
        self.write({"close": number})

    def rows(self, count, first_seed=0):
        self.write({"rows": {"count": count, "first_seed": first_seed}})
        lines = [self.read()]
        while "row" in lines[-1]:
            lines.append(self.read())
        return lines

    def kill(self):
        for stream in (self.process.stdout, self.process.stderr):
            stream.close()
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


def user(text):
    return {"role": "user", "content": text}
