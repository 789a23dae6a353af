"""Words of HTTP that mean something to whoever reads a head or a body: to the server and to the
client.
"""

HTTP_WORDS = [
    b"\r\n",
    b"\n",
    b"\r\n\r\n",
    b"\0",
    b" :",
    b"\r\n folded",
    b"Content-Length: 3\r\n",
    b"Transfer-Encoding: chunked\r\n",
    b"Connection: close\r\n",
    b"Upgrade: h2c\r\n",
    b"0\r\n\r\n",
    b"1;a=b\r\nx\r\n",
]
