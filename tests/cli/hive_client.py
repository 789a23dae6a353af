"""Talking to a hive as its users do: over HTTP and by the command line."""

import json
import socket
import time
import urllib.request


def rows_of(skep):
    return {row["name"]: row for row in json.loads(skep("ps", "--json", check=0).stdout)}


def ask(url, *, key=None, context=None, **fields):
    body = {"model": "fake-model", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3, **fields}
    headers = {"authorization": f"Bearer {key}"} if key else {}
    request = urllib.request.Request(f"{url}/v1/chat/completions", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=30, context=context) as answer:
        return answer.status, answer.read()


def streaming(url, **fields):
    """A plain socket with a streamed answer under way."""
    body = {"model": "fake-model", "messages": [{"role": "user", "content": "hi"}], "stream": True, **fields}
    data = json.dumps(body).encode()
    sock = socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), timeout=30)
    sock.sendall(
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n" % len(data) + data
    )
    return sock


def eventually(check, timeout_s=20):
    deadline = time.monotonic() + timeout_s
    while not (found := check()):
        assert time.monotonic() < deadline, check
        time.sleep(0.02)  # asking another process: there is no event to await
    return found


def rest_of(sock, received):
    """What comes until the end of a chunked answer, or of the connection."""
    while b"0\r\n\r\n" not in received and (data := sock.recv(65536)):
        received += data
    return received
