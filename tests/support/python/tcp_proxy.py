"""A TCP proxy on loopback that can drop or delay all data, to simulate a faulty network."""
import asyncio
import threading


class TcpProxy:
    """Forwards to `target` (HOST:PORT), with a delay of `delay_seconds`. Use it as a context manager."""

    def __init__(self, target, delay_seconds=0.0):
        host, port = target.rsplit(":", 1)
        self.target, self.delay_seconds = (host, int(port)), delay_seconds
        self.generation = 0  # connections of an earlier generation stay silent
        self.swallows, self.kept = False, []
        self.loop = asyncio.new_event_loop()
        ready = threading.Event()
        self.thread = threading.Thread(target=self._run, args=(ready,), daemon=True)
        self.thread.start()
        assert ready.wait(10)

    def swallow(self):
        """From now on, no data passes and no connection is closed, as if a cable was cut."""
        self.generation, self.swallows = self.generation + 1, True

    def heal(self):
        """New connections are forwarded again. Existing ones stay silent."""
        self.swallows = False

    def _run(self, ready):
        asyncio.set_event_loop(self.loop)
        server = self.loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.address = "127.0.0.1:%d" % server.sockets[0].getsockname()[1]
        ready.set()
        self.loop.run_forever()
        left = asyncio.all_tasks(self.loop)
        for task in left:
            task.cancel()
        self.loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        self.loop.close()

    async def _serve(self, reader, writer):
        if self.swallows:
            self.kept.append(writer)  # kept open without an answer
            return
        back_reader, back_writer = await asyncio.open_connection(*self.target)
        await asyncio.gather(self._pump(reader, back_writer, self.generation), self._pump(back_reader, writer, self.generation),
                             return_exceptions=True)

    async def _pump(self, reader, writer, generation):
        late = asyncio.Queue()
        sender = asyncio.create_task(self._send(late, writer, generation))
        while data := await reader.read(1 << 16):
            late.put_nowait((self.loop.time() + self.delay_seconds, data))
        late.put_nowait((self.loop.time() + self.delay_seconds, None))
        await sender

    async def _send(self, late, writer, generation):
        while True:
            when, data = await late.get()
            await asyncio.sleep(max(0.0, when - self.loop.time()))
            if generation != self.generation:
                continue  # neither data nor the end of the connection arrives
            if data is None:
                writer.close()
                return
            writer.write(data)
            await writer.drain()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(timeout=10)
