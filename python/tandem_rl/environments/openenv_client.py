"""Environments of a server of OpenEnv (https://github.com/meta-pytorch/OpenEnv), each episode over a WebSocket of its own. Used by
worker.py. As openenv.core.env_client of openenv 0.10 has it: {"type": "reset", "data": {"seed": 5}}, {"type": "step", "data":
action} and {"type": "close"} go to URL/ws; {"type": "observation", "data": {"observation": {..}, "reward", "done"}} or {"type":
"error", "data": {"message", "code"}} comes back. Needs the package websockets.

environment.kwargs: `action`, the field of the action that gets the model's text (without it a turn that is an object of JSON is the
action, and any other text is its field "message"); `observation`, the field of the observation that the model is shown (without it
the only field with text, or else all as JSON); what else there is goes to reset."""
import json
import urllib.parse
from typing import Any

from ..workers.loading import LoadError
from .episode import Environment, Episode, EpisodeError, Json, Reply, Turn
from .observations import metrics_of, reward_of

MAX_MESSAGE_BYTES = 100 << 20  # as OpenEnv's client allows
SCHEMES = {"http": "ws", "https": "wss", "ws": "ws", "wss": "wss"}


def _socket_url(url: str) -> str:
    parts = urllib.parse.urlsplit(url)
    if parts.scheme not in SCHEMES or not parts.hostname:
        raise LoadError(f"environment.openenv: {url} is no address of a server: want http://HOST:PORT or https://HOST:PORT")
    return urllib.parse.urlunsplit((SCHEMES[parts.scheme], parts.netloc, parts.path.rstrip("/") + "/ws", parts.query, ""))


class OpenEnvEnvironment(Environment):
    """Raises LoadError. The server is asked when the first episode opens."""

    def __init__(self, url: str, kwargs: dict[str, Any]) -> None:
        super().__init__()
        try:
            import websockets.asyncio.client
        except ImportError as error:
            raise LoadError("environment.openenv needs the package websockets from 15 on: pip install websockets, or pip install "
                            f"'tandem-rl[openenv]', for the interpreter of the environment ({error})") from None
        self.connect = websockets.asyncio.client.connect
        self.socket_error: type[Exception] = websockets.exceptions.WebSocketException
        self.url = _socket_url(url)
        self.to_reset = dict(kwargs)
        self.action = self._field(kwargs, "action")
        self.observation = self._field(kwargs, "observation")

    def _field(self, kwargs: dict[str, Any], name: str) -> str | None:
        value = self.to_reset.pop(name, None)
        if value is not None and not isinstance(value, str):
            raise LoadError(f"environment.kwargs.{name} is {value!r}: want the name of a field")
        return value

    def open(self, row: Json, seed: int) -> Episode:
        return OpenEnvEpisode(self, seed)


class OpenEnvEpisode(Episode):
    def __init__(self, environment: OpenEnvEnvironment, seed: int) -> None:
        self.environment = environment
        self.seed = seed
        self.socket: Any = None

    async def reset(self) -> list[Json]:
        environment = self.environment
        is_local = urllib.parse.urlsplit(environment.url).hostname in ("localhost", "127.0.0.1", "::1")
        proxy = {"proxy": None} if is_local else {}
        try:
            self.socket = await environment.connect(environment.url, max_size=MAX_MESSAGE_BYTES, **proxy)
        except (OSError, TimeoutError, environment.socket_error) as error:
            raise EpisodeError(f"{environment.url}: no connection to the server of the environment ({error}): start it, or correct "
                               "environment.openenv") from None
        return self._messages(await self._ask("reset", {**environment.to_reset, "seed": self.seed}))

    async def step(self, turn: Turn) -> Reply:
        data = await self._ask("step", self._action(turn.text))
        is_done = data.get("done")
        if not isinstance(is_done, bool):
            raise EpisodeError(f"{self.environment.url}: done of the answer to step is {is_done!r}: want true or false")
        messages = self._messages(data)
        if not messages and not is_done:
            raise EpisodeError(f"{self.environment.url}: the answer to step has an empty observation and is not done: name another "
                               "field in environment.kwargs.observation")
        info = metrics_of(data.get("metadata") or data["observation"].get("metadata"))
        return Reply(messages, reward_of(data.get("reward"), f"{self.environment.url}: the reward of step"), is_done, info)

    async def close(self) -> None:
        """The server frees its session."""
        if self.socket is None:
            return
        try:
            await self.socket.send(json.dumps({"type": "close"}))
        except (OSError, self.environment.socket_error):
            pass  # it has closed already
        await self.socket.close()

    async def _ask(self, kind: str, data: Json) -> Json:
        """The data of the answer."""
        url = self.environment.url
        try:
            try:
                await self.socket.send(json.dumps({"type": kind, "data": data}))
            except self.environment.socket_error:
                pass  # a server without room sends an error and closes: the error can still be read
            answer = json.loads(await self.socket.recv())
        except (OSError, self.environment.socket_error) as error:
            raise EpisodeError(f"{url}: the connection broke during {kind} ({error})") from None
        except ValueError as error:
            raise EpisodeError(f"{url}: the answer to {kind} is no JSON: {error}") from None
        told = answer.get("data") if isinstance(answer, dict) else None
        if not isinstance(told, dict):
            raise EpisodeError(f"{url}: the answer to {kind} is {json.dumps(answer)[:120]}: want {{\"type\", \"data\": {{..}}}}")
        if answer.get("type") == "error":
            hint = ": raise max_concurrent_envs of the server" if told.get("code") == "CAPACITY_REACHED" else ""
            raise EpisodeError(f"{url}: the server refused {kind}: {told.get('message')} ({told.get('code')}){hint}")
        if not isinstance(told.get("observation"), dict):
            raise EpisodeError(f"{url}: the answer to {kind} has no observation: {json.dumps(told)[:120]}")
        return told

    def _action(self, text: str) -> Json:
        if self.environment.action is not None:
            return {self.environment.action: text}
        try:
            action = json.loads(text.rpartition("</think>")[2])
        except ValueError:
            action = None
        return action if isinstance(action, dict) else {"message": text}

    def _messages(self, data: Json) -> list[Json]:
        shown: Any = {key: value for key, value in data["observation"].items() if key not in ("metadata", "reward", "done")}
        field = self.environment.observation
        if field is not None:
            if field not in shown:
                raise EpisodeError(f"{self.environment.url}: the observation has no field {field}, which "
                                   f"environment.kwargs.observation names; it has {', '.join(shown) or 'none'}")
            shown = shown[field]
        else:
            texts = [value for value in shown.values() if isinstance(value, str)]
            shown = texts[0] if len(texts) == 1 else shown
        if shown in (None, "", {}, []):
            return []
        return [{"role": "user", "content": shown if isinstance(shown, str) else json.dumps(shown, ensure_ascii=False)}]
