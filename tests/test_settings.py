import os
from pathlib import Path

import msgspec
import pytest

from skep.config.gateway_messages import AdmissionLimits, Timeouts
from skep.config.load import load_settings, make_upstream, parse_settings, settings_with_overrides
from skep.config.settings import CliOverrides, Cluster, GatewaySettings, Settings
from skep.deploy.launches import plan_launches
from skep.errors import UserError
from skep.paths import MAX_SOCKET_PATH, make_runtime, user_paths
from skep.supervisor.main import gateway_setup
from skep.wire.server_request import ServerLimits


def test_folders_follow_xdg_and_ignore_relative_values(tmp_path):
    paths = user_paths(
        {"HOME": "/home/bee", "XDG_DATA_HOME": str(tmp_path), "XDG_CACHE_HOME": "relative"}
    )
    assert paths.store == tmp_path / "skep" / "skep.sqlite3"
    assert paths.cache == Path("/home/bee/.cache/skep")


def test_two_installations_do_not_share_a_control_socket(tmp_path):
    """Only the state folder differs, and the runtime folder is the same for both."""
    shared = {"HOME": "/home/bee", "XDG_RUNTIME_DIR": str(tmp_path)}
    first = user_paths({**shared, "XDG_STATE_HOME": "/a"})
    second = user_paths({**shared, "XDG_STATE_HOME": "/b"})
    assert first.socket != second.socket
    assert first.runtime.parent == second.runtime.parent == tmp_path


def test_a_runtime_folder_too_long_for_a_socket_is_replaced_and_an_open_one_refused(
    tmp_path,
):
    long = tmp_path / ("x" * 120)
    long.mkdir(mode=0o755)
    paths = user_paths({"HOME": "/home/bee", "XDG_RUNTIME_DIR": str(long)})
    assert len(os.fsencode(paths.socket)) <= MAX_SOCKET_PATH
    with pytest.raises(UserError, match="not private"):
        make_runtime(long)


def test_a_file_in_the_folder_is_used_and_without_one_the_embedded_model_is_served(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    paths = user_paths({"HOME": str(tmp_path)})
    assert load_settings(None, paths, {}) == Settings()
    (tmp_path / "skep.toml").write_text(
        '[gateway]\nport = 9000\nmax_wait = "2m"\n[[serve]]\nslots = 8\nreplicas = 2\n'
    )
    settings = load_settings(None, paths, {"SKEP_API_KEY": "secret"})
    assert (settings.gateway.port, settings.gateway.max_wait_s, settings.gateway.api_key) == (
        9000,
        120.0,
        "secret",
    )
    assert (settings.serve[0].slots, settings.serve[0].replicas) == (8, 2)


@pytest.mark.parametrize(
    ("document", "where"),
    [
        ({"gateway": {"prot": 1}}, "gateway.prot"),
        ({"serve": [{"slots": 0}]}, "serve.0.slots"),
        ({"serve": [{"slots": "4"}]}, "serve.0.slots"),
        ({"serve": []}, "serve"),
        ({"upstream": [{"url": "http://x:1"}]}, "upstream.0.slots"),
        ({"upstream": [{"url": "http://x:1", "slots": 1, "key": "k"}]}, "upstream.0.key"),
        ({"gateway": {"idle_timeout": "0s"}}, "gateway.idle_timeout"),
        ({"gateway": {"address_share": "half"}}, "gateway.address_share"),
        ({"gateway": {"body_limit": "much"}}, "gateway.body_limit"),
        ({"gateway": {"cors_origins": ["localhost"]}}, "gateway.cors_origins"),
        ({"aliases": {"a": 1}}, "aliases.a"),
        ({"cluster": {"adress": "auto"}}, "cluster.adress` is an unknown key"),
        (
            {"cluster": {"address": "ray://10.0.0.1:10001"}},
            "ray://10.0.0.1:10001` is not the address of a Ray cluster",
        ),
        ({"cluster": {"address": ""}}, "` is not the address"),
        ({"cluster": {"address": "auto", "hive": "a b"}}, "a b` is not a valid deployment name"),
    ],
)
def test_a_wrong_key_or_value_is_named_with_its_place(document, where):
    with pytest.raises(UserError) as caught:
        parse_settings(document, "skep.toml", {})
    assert f"skep.toml: `{where}" in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize(
    ("name", "message"), [("bad.toml", r"bad\.toml cannot be read"), ("no.toml", "does not exist")]
)
def test_a_file_that_is_asked_for_must_exist_and_be_toml(tmp_path, name, message):
    (tmp_path / "bad.toml").write_text("[gateway\n")
    with pytest.raises(UserError, match=message):
        load_settings(tmp_path / name, user_paths({"HOME": str(tmp_path)}), {})


EVERYTHING = {
    "gateway": {
        "aging": "10s",
        "dead_after": "20s",
        "first_byte_timeout": "1h",
        "body_limit": "1MiB",
        "cors_origins": ["http://localhost:3000"],
        "tls_certificate": "cert.pem",
        "tls_key": "/etc/key.pem",
        "store_requests": False,
        "workers": 4,
    },
    "serve": [
        {
            "engine": "fake",
            "model": "m",
            "slots": 4,
            "reserve": 1,
            "soft_slots": 2,
            "extra": ["-x"],
        }
    ],
    "upstream": [
        {"url": "https://box.example/v1/", "slots": 8, "model": "n", "health_path": "/ping"}
    ],
    "aliases": {"claude-*": "m", "gpt-4o": "n"},
    "cluster": {"address": "10.0.0.1:6379", "hive": "team-a"},
}


def test_settings_survive_their_way_through_json(tmp_path):
    """So they reach the process in the background, and a running one at a reload. The command line
    wins over the file, from whose folder on paths of certificates are read."""
    told = parse_settings(EVERYTHING, "test", {"SKEP_API_KEY": "k"}, tmp_path)
    assert told.cluster == Cluster("10.0.0.1:6379", "team-a")
    assert (told.gateway.tls_certificate, told.gateway.tls_key) == (
        str(tmp_path / "cert.pem"),
        "/etc/key.pem",
    )
    upstream = (make_upstream("x:1", 1),)
    settings = CliOverrides(
        folder="/x", serve={"slots": 2}, upstream=upstream, cluster=Cluster("auto")
    ).apply(told)
    assert settings.cluster == Cluster("auto", "skep")
    assert msgspec.json.decode(msgspec.json.encode(settings), type=Settings) == settings


def test_the_gateways_own_defaults_are_those_of_the_file(tmp_path):
    setup = gateway_setup(Settings(), user_paths({"HOME": str(tmp_path)}))
    assert (setup.limits, setup.timeouts, setup.server) == (
        AdmissionLimits(),
        Timeouts(),
        ServerLimits(),
    )
    assert Timeouts().first_byte_s >= 900
    assert parse_settings({"gateway": {}}, "test", {}).gateway == GatewaySettings()
    assert not setup.keys_wanted


def test_with_upstreams_and_no_models_nothing_is_started():
    settings = parse_settings({"upstream": EVERYTHING["upstream"]}, "test", {})
    assert settings.serve == ()
    (upstream,) = settings.upstream
    assert (upstream.url, upstream.name) == ("https://box.example:443", "box.example-443")


@pytest.mark.parametrize(
    "url", ["http://x:1/v2", "http://x:1/v1/chat/completions", "http://u@x:1", "x:y", "http://"]
)
def test_an_upstream_is_an_address_and_nothing_more(url):
    with pytest.raises(UserError) as caught:
        make_upstream(url, 1)
    assert caught.value.hint


def test_an_upstream_of_an_address_in_brackets_has_a_name_that_can_be_typed():
    assert make_upstream("http://[::1]:8000", 1).name == "1-8000"
    for name in ("gateway", "a/b", "-x", "requests"):
        with pytest.raises(UserError, match="not a valid upstream name"):
            make_upstream("http://x:1", 1, name=name)


def test_what_the_command_line_said_wins_again_when_the_file_is_read_anew(tmp_path):
    paths = user_paths({"HOME": str(tmp_path)})
    overrides = CliOverrides(folder=str(tmp_path), serve={"slots": 8}, gateway={"port": 0})
    assert settings_with_overrides(overrides, paths, {}).serve[0].slots == 8
    (tmp_path / "skep.toml").write_text(
        "[gateway]\nmax_queue = 7\n[[serve]]\nslots = 2\nreplicas = 3\n"
    )
    settings = settings_with_overrides(overrides, paths, {})
    assert (settings.serve[0].slots, settings.serve[0].replicas) == (8, 3)
    assert (settings.gateway.port, settings.gateway.max_queue) == (0, 7)
    assert settings.overrides == overrides


def test_a_model_named_on_the_command_line_stands_for_all_that_the_file_serves():
    settings = CliOverrides(model="m").apply(parse_settings(EVERYTHING, "test", {}))
    assert ([serve.model for serve in settings.serve], settings.upstream) == (["m"], ())
    assert (
        CliOverrides(only_upstreams=True).apply(parse_settings(EVERYTHING, "test", {})).serve == ()
    )


def test_aliases_must_stand_for_something_served(tmp_path):
    paths = user_paths({"HOME": str(tmp_path)})
    launches = plan_launches(parse_settings(EVERYTHING, "test", {}), paths)
    assert [launch.name for launch in launches] == ["m-0", "box.example-443"]
    assert (launches[0].reserve, launches[0].soft_slots, launches[1].health_path) == (
        1,
        2,
        "/ping",
    )
    astray = {**EVERYTHING, "aliases": {"gpt-4o": "nobody"}}
    with pytest.raises(UserError, match="the alias `gpt-4o` stands for `nobody`"):
        plan_launches(parse_settings(astray, "test", {}), paths)
    # What it serves is still to be asked.
    unnamed = {
        **astray,
        "upstream": [{"url": "http://x:1", "slots": 1}],
    }
    assert len(plan_launches(parse_settings(unnamed, "test", {}), paths)) == 2


def test_one_replica_more_leaves_the_threads_of_the_others_alone(tmp_path):
    """Threads are the cores divided among the replicas: a reload would restart them all for it."""
    paths = user_paths({"HOME": str(tmp_path)})

    def plan(replicas, running=()):
        document = {"serve": [{"engine": "fake", "model": "m", "replicas": replicas}]}
        return plan_launches(parse_settings(document, "test", {}), paths, running=running)

    assert plan(64, plan(1))[0] == plan(1)[0]
