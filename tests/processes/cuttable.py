"""Gateways that a test can cut: everybody reaches a gatekeeper by way of a port of the test, which passes bytes on."""

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

from m4cast.cluster.federation import LocalFederation
from m4cast.cluster.plan import write_plan

CHUNK_BYTES = 1 << 16


class CuttableGates:
    """One port for each gatekeeper, on a loop of its own thread. `cut` ends all connections to a gatekeeper, and lets
    in no others while it lasts."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="gates", daemon=True)
        self._thread.start()
        self._cut: set[str] = set()
        self._open: dict[str, set[asyncio.StreamWriter]] = {}
        self._servers: list[asyncio.Server] = []

    def _do(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    def port_for(self, address: str) -> str:
        """The address by which others reach a gatekeeper."""

        async def listen() -> str:
            server = await asyncio.start_server(lambda *ends: self._pass_on(address, *ends), "127.0.0.1", 0)
            self._servers.append(server)
            return f"127.0.0.1:{server.sockets[0].getsockname()[1]}"

        self._open[address] = set()
        return str(self._do(listen()))

    async def _pass_on(self, address: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers = [writer]
        with suppress(OSError):
            if address not in self._cut:
                host, _, port = address.rpartition(":")
                there, to_there = await asyncio.open_connection(host, int(port))
                writers.append(to_there)
                self._open[address].update(writers)
                await asyncio.gather(_pump(reader, to_there), _pump(there, writer))
        for each in writers:
            each.close()
        self._open[address].difference_update(writers)

    @contextmanager
    def cut(self, address: str) -> Iterator[None]:
        async def end() -> None:
            self._cut.add(address)
            for writer in self._open[address]:
                writer.transport.abort()

        async def heal() -> None:
            self._cut.discard(address)

        self._do(end())
        try:
            yield
        finally:
            self._do(heal())

    def close(self) -> None:
        async def end() -> None:
            for server in self._servers:
                server.close()
            for writers in self._open.values():
                for writer in writers:
                    writer.transport.abort()
            await asyncio.sleep(0)  # what was aborted ends

        self._do(end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(30)
        self._loop.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while chunk := await reader.read(CHUNK_BYTES):
            writer.write(chunk)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()


def make_cuttable(federation: LocalFederation, gates: CuttableGates) -> None:
    """Before it starts: each gatekeeper advertises a port of `gates`, and is called there."""
    ports = {address: gates.port_for(address) for own in federation.gates.values() for address in own}
    for name, cluster in federation.clusters.items():
        more = {}
        for number, (node, tables) in enumerate(sorted(cluster.plan.more.items())):
            own, lines = federation.gates[name][number], []
            for line in tables.splitlines():
                if line.startswith("listen = "):
                    lines += [line, f'advertise = "{ports[own]}"']
                    continue
                called = next((address for address in ports if f'"{address}"' in line), own)
                lines.append(line.replace(called, ports[called]))
            more[node] = "\n".join(lines) + "\n"
        cluster.plan = replace(cluster.plan, more=more)
        write_plan(cluster.folder, cluster.plan)
    for caller, addresses in federation.calls.items():
        federation.calls[caller] = [ports[address] for address in addresses]
