"""Engines of a hive on this machine want a key: neither other users nor web pages reach them past the gateway."""

from in_process import refused

from skep.paths import user_paths
from skep.supervisor.control import local_key


def test_without_a_hive_only_the_gateways_own_key_is_sent_and_to_this_machine_only(env, tmp_path):
    own, paths = {**env, "SKEP_API_KEY": "of-the-gateway"}, user_paths(env)
    assert local_key("http://localhost:8400/v1", own, paths) == "of-the-gateway"
    assert local_key("http://10.1.2.3:8400", own, paths) is None
    assert local_key("http://127.0.0.1:8400", env, paths) is None


def test_a_key_in_the_settings_of_an_engine_is_refused_with_what_to_do(paths, tmp_path):
    """Two keys cannot be: the gateway sends the hive's own."""
    (tmp_path / "m.gguf").write_bytes(b"")
    program = tmp_path / "vllm"
    program.write_text("#!/bin/sh\nexit 0\n")
    program.chmod(0o755)
    (tmp_path / "skep.toml").write_text(
        f'[gateway]\nport = 0\n[[serve]]\nmodel = "org/m"\nengine = "vllm"\nbinary = "{program}"\n'
        'extra = ["--api-key", "another"]\n'
    )
    said = refused("up", "-d")
    assert "--api-key" in said
    assert "another" not in said
