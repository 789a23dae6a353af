"""A server of `wire` on a real socket, and a client that sends it what bytes it likes."""

import asyncio
import contextlib
import socket

from skep.wire.heads import Origin
from skep.wire.server import HttpServer


class Service:
    """A server that keeps what its handler was given and what its loop complained of."""

    def __init__(self, server, origin, handled, complaints):
        self.server = server
        self.origin = origin
        self.handled = handled
        self.complaints = complaints

    @property
    def targets(self):
        return [request.target for request in self.handled]

    async def connect(self, **kwargs):
        return await asyncio.open_connection(self.origin.host, self.origin.port, **kwargs)

    async def talk(self, *pieces):
        """Send the pieces, each in a packet of its own; return all that comes back until the
        server closes.
        """
        reader, writer = await self.connect()
        writer.transport.get_extra_info("socket").setsockopt(
            socket.IPPROTO_TCP, socket.TCP_NODELAY, 1
        )
        with contextlib.suppress(ConnectionError):
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0)
        answer = await asyncio.wait_for(reader.read(), 10)
        await hang_up(writer)
        return answer

    async def is_well(self):
        reader, writer = await self.connect()
        writer.write(b"GET /well HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
        assert (await asyncio.wait_for(reader.read(), 5)).startswith(b"HTTP/1.1 200 OK\r\n")
        await hang_up(writer)


async def until(happened, timeout_s=30.0):
    async with asyncio.timeout(timeout_s):
        while not happened():
            await asyncio.sleep(0)


def is_empty(server):
    return "0 connections" in repr(server)


async def hang_up(writer):
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


def echo(request):
    request.respond(200, [], request.method + b" " + request.target + b" " + request.body)


@contextlib.asynccontextmanager
async def serving(handler=echo, limits=None, tls=None, **options):
    handled = []
    complaints = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))

    def keep_and_handle(request):
        handled.append(request)
        handler(request)

    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    server = HttpServer(keep_and_handle, limits, **options)
    await server.listen(sock, tls)
    try:
        yield Service(server, Origin("127.0.0.1", sock.getsockname()[1]), handled, complaints)
    finally:
        await server.close(0)
        await until(lambda: is_empty(server))
    assert complaints == []
