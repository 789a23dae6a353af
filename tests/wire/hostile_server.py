"""A server in a thread that answers every request with the same beginning, and then with a piece
without end.
"""

import contextlib
import socket
import threading

from skep.wire.heads import Origin

ENOUGH_BYTES = 64 << 20  # sent to a client that takes anything


class HostileServer:
    """`sent`: bytes that the clients have taken, or that lie in the kernel."""

    def __init__(self, begin, piece):
        self.begin = begin
        self.piece = piece
        self.sent = 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.origin = Origin("127.0.0.1", self.listener.getsockname()[1])

    def serve(self):
        while True:
            try:
                connection = self.listener.accept()[0]
            except OSError:
                return
            with connection, contextlib.suppress(OSError):
                connection.settimeout(30)
                self.answer(connection)

    def answer(self, connection):
        connection.recv(65536)
        connection.sendall(self.begin)
        pieces = self.piece * max(1, 65536 // len(self.piece))
        while self.sent < ENOUGH_BYTES:
            self.sent += connection.send(pieces)


@contextlib.contextmanager
def hostile(begin, piece):
    server = HostileServer(begin, piece)
    thread = threading.Thread(target=server.serve)
    thread.start()
    try:
        yield server
    finally:
        with contextlib.suppress(OSError):
            server.listener.shutdown(socket.SHUT_RDWR)
        server.listener.close()
        thread.join()
