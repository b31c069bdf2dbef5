"""A proxy on this machine that stands between a client and an HTTP server, adds latency and does damage on request.

Run as a program it only adds latency and limits the rate, in a process of its own: ``python fault_proxy.py UPSTREAM
LATENCY_SECONDS BYTES_PER_SECOND`` prints its address and serves until its input ends. A rate of 0 is no limit.
"""

import asyncio
import sys
import threading
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

_PIECE_BYTES = 1 << 20


@dataclass
class Fault:
    """Damage done to requests.

    Attributes:
        kind: ``status``: an answer of that status; ``drop``: no answer, the connection is closed; ``cut``: half of the
            answer, then the connection is closed; ``short``: half of what was asked for, as if it were all; ``flip``:
            another byte in the middle; ``hang``: no answer.
        match: what the target of a request must contain, percent signs resolved.
        times: how many requests it hits.
        status: of the answer.
    """

    kind: str
    match: str = ""
    times: int = 1
    status: int = 503


class FaultProxy:
    """The proxy, on a thread.

    Attributes:
        address: its URL.
        latency: seconds that it waits before a request is handed on.
        rate: most bytes per second of all answers together; 0 for no limit.
        faults: what it does; each hits in turn until it is used up.
        targets: the targets of the requests so far, percent signs resolved, each with its range.
    """

    def __init__(self, upstream: str, latency: float = 0.0, rate: float = 0.0) -> None:
        self.latency, self.rate = latency, rate
        self._due = 0.0  # when the line is free again
        self.faults: list[Fault] = []
        self.targets: list[tuple[str, str]] = []
        parts = urllib.parse.urlsplit(upstream)
        self._upstream = (parts.hostname, parts.port)
        self._loop = asyncio.new_event_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True, name="fault proxy")
        self._thread.start()
        self._server = asyncio.run_coroutine_threadsafe(
            asyncio.start_server(self._serve, "127.0.0.1", 0, limit=2 * _PIECE_BYTES), self._loop
        ).result()
        self.address = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def reset(self, *faults: Fault, latency: float = 0.0) -> None:
        """Forgets what was, and does other damage from now on."""
        self.faults, self.latency = list(faults), latency
        self.targets.clear()

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._shut(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _shut(self) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        upstream = None
        try:
            upstream = await asyncio.open_connection(*self._upstream, limit=2 * _PIECE_BYTES)
            while await self._exchange(reader, writer, *upstream):
                pass
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            for one in (writer, *(upstream or ())[1:]):
                with suppress(Exception):
                    one.close()

    async def _exchange(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        from_server: asyncio.StreamReader,
        to_server: asyncio.StreamWriter,
    ) -> bool:
        head = await reader.readuntil(b"\r\n\r\n")
        headers = _headers(head)
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        target = urllib.parse.unquote(head.split(b" ", 2)[1].decode())
        self.targets.append((target, headers.get("range", "")))
        fault = self._fault(target)
        if self.latency:
            await asyncio.sleep(self.latency)
        if fault is not None and fault.kind == "drop":
            return False
        if fault is not None and fault.kind == "hang":
            await asyncio.sleep(3600)
        if fault is not None and fault.kind == "status":
            writer.write(f"HTTP/1.1 {fault.status} Injected\r\nContent-Length: 2\r\n\r\n{{}}".encode())
            await writer.drain()
            return True
        to_server.write(head + body)
        answer = await from_server.readuntil(b"\r\n\r\n")
        found = _headers(answer)
        if fault is not None:
            data = bytearray(await from_server.readexactly(int(found["content-length"])))
            if fault.kind == "flip":
                data[len(data) // 2] ^= 1
            elif fault.kind == "short":
                del data[len(data) // 2 :]
                answer = b"HTTP/1.1 206 Partial Content\r\nContent-Length: %d\r\n\r\n" % len(data)
            writer.write(answer + (data[: len(data) // 2] if fault.kind == "cut" else data))
            await writer.drain()
            return fault.kind != "cut"
        writer.write(answer)
        if "content-length" in found:
            await self._relay(from_server, writer, int(found["content-length"]))
        while found.get("transfer-encoding") == "chunked":
            line = await from_server.readuntil(b"\r\n")
            writer.write(line)
            await self._relay(from_server, writer, int(line, 16) + 2)
            if int(line, 16) == 0:
                break
        return True

    def _fault(self, target: str) -> Fault | None:
        for fault in self.faults:
            if fault.times > 0 and fault.match in target:
                fault.times -= 1
                return fault
        return None

    async def _relay(self, source: asyncio.StreamReader, target: asyncio.StreamWriter, count: int) -> None:
        while count:
            data = await source.read(min(count, _PIECE_BYTES))
            if not data:
                raise ConnectionError("the server went away")
            if self.rate:
                now = self._loop.time()
                self._due = max(self._due, now - 0.01) + len(data) / self.rate
                await asyncio.sleep(self._due - now)
            target.write(data)
            await target.drain()
            count -= len(data)


def _headers(head: bytes) -> dict[str, str]:
    lines = head.decode("latin-1").split("\r\n")[1:]
    return {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines) if name}


@contextmanager
def proxy_to(upstream: str, latency: float = 0.0, rate: float = 0.0) -> Iterator[FaultProxy]:
    """Runs a proxy while the block lasts."""
    proxy = FaultProxy(upstream, latency, rate)
    try:
        yield proxy
    finally:
        proxy.close()


if __name__ == "__main__":
    with proxy_to(sys.argv[1], float(sys.argv[2]), float(sys.argv[3])) as running:
        print(running.address, flush=True)
        sys.stdin.read()
