"""HTTP/1.1 and server-sent events: the one client and server protocol used everywhere."""
