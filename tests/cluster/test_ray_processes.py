"""With which flags, ports and environment Ray's processes are started."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from skep.cluster.node_commands import refusal
from skep.cluster.ray_processes import (
    ENGINE_PORTS,
    MARK,
    NodeOptions,
    NodeRecord,
    Ports,
    arguments,
    checked_address,
    checked_ports,
    engine_ports,
    environment,
)
from skep.errors import EngineError, UserError

HEAD = NodeRecord("10.0.0.1:6379", "10.0.0.1", True, "a", "6379-7499", "m4rk")
PORTS = Ports()
FOLDER = Path("/tmp/x/r")
TOKEN = Path("/c/ray-token")


def test_a_head_listens_in_one_range_without_dashboard_and_statistics():
    flags = arguments(HEAD, NodeOptions(), PORTS, FOLDER)
    assert {"--head", "--no-monitor", "--disable-usage-stats", "--include-dashboard=false"} < set(
        flags
    )
    assert "--node-ip-address=10.0.0.1" in flags
    ports = {
        flag: int(number)
        for flag, _, number in (word.partition("=") for word in flags)
        if "port" in flag
    }
    assert all(PORTS.first <= port <= PORTS.last for port in ports.values())
    assert len(set(ports.values())) == len(ports), "none is taken twice"
    assert str(PORTS) == "6379-7499"
    assert not any("ray-client" in word for word in flags)
    assert "--ray-client-server-port=6398" in arguments(
        HEAD, NodeOptions(), PORTS, FOLDER, has_client=True
    )


def test_a_node_is_told_its_head_and_what_it_lends():
    options = NodeOptions("b", cpus=4, gpus=0)
    flags = arguments(
        replace(HEAD, is_head=False, address="10.0.0.2"), options, Ports(9000), FOLDER
    )
    assert {"--address=10.0.0.1:6379", "--num-cpus=4", "--num-gpus=0"} < set(flags)
    assert not any(word.startswith(("--head", "--port", "--dashboard-port")) for word in flags)


def test_what_closes_it_cannot_be_undone_by_the_environment_and_the_rest_can():
    theirs = {
        "RAY_AUTH_MODE": "disabled",
        "RAY_AUTH_TOKEN": "another",
        "RAY_ADDRESS": "elsewhere:1",
        "RAY_USAGE_STATS_ENABLED": "1",
        "RAY_health_check_period_ms": "5000",
        "PATH": "/bin",
    }
    variables = environment(HEAD, PORTS, TOKEN, theirs)
    assert (variables["RAY_AUTH_MODE"], variables["RAY_AUTH_TOKEN_PATH"]) == (
        "token",
        "/c/ray-token",
    )
    assert not {"RAY_ADDRESS", "RAY_AUTH_TOKEN"} & set(variables)
    assert variables["RAY_USAGE_STATS_ENABLED"] == "0"
    assert variables["RAY_health_check_period_ms"] == "5000"
    assert int(variables["RAY_gcs_rpc_server_reconnect_timeout_s"]) > 24 * 3600, (
        "what serves outlives its head"
    )
    assert (variables["PATH"], variables[MARK]) == ("/bin", "m4rk")


def test_engines_of_a_node_have_ports_of_the_same_range_and_elsewhere_any():
    low, high = PORTS.engines
    assert (low, high, high) == (7400, 7499, PORTS.last)
    assert low > max(*PORTS.workers, *PORTS.services.values())
    assert engine_ports(environment(HEAD, PORTS, TOKEN, {ENGINE_PORTS: "1-2"})) == range(
        7400, 7500
    )
    assert engine_ports({}) is None
    for wrong in ("7400", "7499-7400", "a-b", "1-70000"):
        with pytest.raises(EngineError, match=f"`{wrong}`, not a range of ports"):
            engine_ports({ENGINE_PORTS: wrong})


def test_loopback_stays_loopback():
    """Ray puts the address of another interface in its place, unless it is told not to."""
    variable = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
    assert environment(HEAD, PORTS, TOKEN, {})[variable] == "1"
    assert (
        environment(replace(HEAD, address=checked_address("localhost")), PORTS, TOKEN, {})[
            variable
        ]
        == "0"
    )


@pytest.mark.parametrize(
    ("check", "wrong", "words"),
    [
        (checked_address, ["0.0.0.0", "::", "head", "10.0.0", "224.0.0.1", ""], "is no"),
        (checked_ports, [0, 80, 65000], "is not possible"),
    ],
    ids=["an address is that of one interface", "a first port leaves room"],
)
def test_what_a_node_cannot_be_started_with_is_refused(check, wrong, words):
    for given in wrong:
        with pytest.raises(UserError, match=words):
            check(given)


@pytest.mark.parametrize(
    ("text", "kind", "words"),
    [
        ("ray.exceptions.AuthenticationError: RPC error", EngineError, "its token differs"),
        (
            (
                "RuntimeError: Version mismatch:\n Ray: 2.59.0\n Python: 3.11.2\nThis\n Ray: "
                "2.60.0\n Python: 3.12.1\n"
            ),
            UserError,
            "runs Ray 2.59.0 on Python 3.11.2, this machine has Ray 2.60.0 and Python 3.12.1",
        ),
        ("RuntimeError: Version mismatch: in other words", UserError, "runs Ray ?"),
        (
            "Traceback\nValueError: no such thing\n",
            EngineError,
            "Ray did not start: ValueError: no such thing",
        ),
        ("", EngineError, "no message"),
    ],
)
def test_why_ray_did_not_start_is_one_line(text, kind, words):
    error = refusal("10.0.0.1:6379", text, Path("log"))
    assert isinstance(error, kind)
    assert words in error.message
    assert "\n" not in error.message
