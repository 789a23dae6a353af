"""nginx and HAProxy in front of the replicas: the fewest under way gets the next one, and no more than its slots."""

from __future__ import annotations

from skep.engines.export.recipe import HERE, Recipe, file_name, head, health_path
from skep.engines.export.words import comments

READ_S = 900  # the longest silence of an answer: a long prompt, or a queue inside the engine
QUEUE_S = 900

_SKEP_DOES_MORE = (
    "What `skep gateway` does in addition: a queue by priority and by agent in the order of arrival, a conversation",
    "back to the replica that holds its prefix, slots given back only when the engine says they are free after a",
    "client hung up, 429 with Retry-After when the queue is full, keys and quotas, tokens and latency in /metrics.",
)


def nginx(recipe: Recipe) -> str:
    name = f"{file_name(recipe.name).replace('.', '_')}_pool"
    servers = "".join(
        f"        server {HERE}:{launch.port} max_conns={launch.slots} max_fails=3 fail_timeout=10s;\n"
        for launch in recipe.launches
    )
    lines = (
        *head(recipe, "nginx"),
        f"The engines must run: `skep export {recipe.asked} --as shell` (or docker, compose, systemd) starts them.",
        "Check and start: nginx -t -c $PWD/nginx.conf && nginx -c $PWD/nginx.conf",
        "",
        "max_conns is the slots of a replica. nginx has no queue (the `queue` directive is of NGINX Plus): with",
        f"{recipe.capacity} requests under way, the next one gets 502 at once. Without max_conns it would wait in an",
        "engine, unseen, perhaps while another one is idle. HAProxy (`--as haproxy`) and skep's gateway queue.",
        "nginx finds a dead replica by failed requests only (max_fails): it asks no health check.",
        *_SKEP_DOES_MORE,
    )
    return f"""\
{comments(lines)}
events {{ worker_connections 4096; }}

http {{
    upstream {name} {{
        zone {name} 64k;  # one count for all workers; without it max_conns holds for each
        least_conn;
{servers}    }}

    server {{
        listen {HERE}:{recipe.port};
        client_max_body_size 64m;

        location / {{
            proxy_pass http://{name};
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_set_header Host $host;
            proxy_buffering off;  # a streamed answer goes on token by token
            proxy_request_buffering off;
            proxy_connect_timeout 5s;
            proxy_read_timeout {READ_S}s;
            proxy_send_timeout {READ_S}s;
        }}
    }}
}}
"""


def haproxy(recipe: Recipe) -> str:
    asked = "check inter 5s fall 3 rise 1"
    servers = "".join(
        f"    server {file_name(launch.name)} {HERE}:{launch.port} maxconn {launch.slots} {asked}\n"
        for launch in recipe.launches
    )
    lines = (
        *head(recipe, "haproxy"),
        f"The engines must run: `skep export {recipe.asked} --as shell` (or docker, compose, systemd) starts them.",
        "Check and start: haproxy -c -f haproxy.cfg && haproxy -f haproxy.cfg",
        "",
        "maxconn of a server is its slots: what is beyond waits here, in one queue for all of them, and goes to the",
        f"first that is free; after {QUEUE_S} s without one it gets 503.",
        *_SKEP_DOES_MORE,
    )
    return f"""\
{comments(lines)}
global
    maxconn 4096

defaults
    mode http
    timeout connect 5s
    timeout client {READ_S}s
    timeout server {READ_S}s  # the longest silence of an answer
    timeout queue {QUEUE_S}s
    timeout http-request 60s

frontend {file_name(recipe.name)}
    bind {HERE}:{recipe.port}
    default_backend replicas

backend replicas
    balance leastconn
    option httpchk GET {health_path(recipe.first)}
    http-check expect status 200
    retries 2
    option redispatch
{servers}"""
