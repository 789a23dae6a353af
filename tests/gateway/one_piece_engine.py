"""An engine that answers every request with the same bytes, in one piece."""

import socket
import threading


class OnePieceEngine:
    """`wait`: an event that its answers wait for.

    `kept_back`: bytes at the end of each answer that never come.
    """

    def __init__(self, body, status=200, kind="application/json", wait=None, kept_back=0):
        self.body = body
        self._status = status
        self._kind = kind
        self._wait = wait
        self._kept_back = kept_back
        self._ended = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self):
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(client,), daemon=True).start()

    def _answer(self, client):
        with client:
            is_post = read_request(client).startswith(b"POST")
            if self._wait is not None and is_post:
                self._wait.wait(30)
            fields = (
                f"content-type: {self._kind}\r\ncontent-length: {len(self.body)}\r\nconnection: "
                "close"
            )
            answer = f"HTTP/1.1 {self._status} no\r\n{fields}\r\n\r\n".encode() + self.body
            client.sendall(answer[: len(answer) - self._kept_back])
            if self._kept_back:
                self._ended.wait(30)

    def close(self):
        self._ended.set()
        self._listener.close()


def read_request(client):
    received = b""
    while part := client.recv(65536):
        received += part
        head, _, body = received.partition(b"\r\n\r\n")
        if head.startswith(b"GET"):
            break
        if b"content-length" in head and len(body) >= length_in(head):
            break
    return received


def length_in(head):
    return int(head.split(b"content-length: ")[1].split(b"\r\n")[0])
