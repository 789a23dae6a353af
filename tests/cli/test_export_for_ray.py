"""`skep export --as ray-serve|kuberay` beside a Ray that is not there, one without Serve, and one of another mind."""

import sys

import pytest
from typer.testing import CliRunner

from skep.cli.main import app
from skep.errors import SkepError, UserError

WITHOUT = "raise ImportError(\"No module named 'ray'\")"
SCHEMA = """
from pydantic import BaseModel

class ServeDeploySchema(BaseModel):
    applications: list[dict]

class DeploymentSchema(BaseModel):
    name: str
    num_replicas: int
    max_ongoing_requests: int
"""


@pytest.fixture
def exported(tmp_path, monkeypatch):
    """Run with what stands in for Ray: files of a package `ray`, found before any other."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in [name for name in sys.modules if name.partition(".")[0] == "ray"]:
        monkeypatch.delitem(sys.modules, name)

    def run(form, ray, *more):
        for name, text in {"__init__.py": "__version__ = '9.9'", **ray}.items():
            file = tmp_path / "ray" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        return CliRunner().invoke(app, ["export", "qwen3.6-27b-3090-mtp3", "--as", form, *map(str, more)])

    yield run
    for name in [name for name in sys.modules if name.partition(".")[0] == "ray"]:
        del sys.modules[name]  # the stand-in; what was there before comes back


def test_without_ray_it_is_written_and_said_to_be_unchecked(exported, tmp_path):
    done = exported("kuberay", {"__init__.py": WITHOUT}, "-o", tmp_path / "service.yaml")
    assert done.exit_code == 0
    assert "not checked against Ray's schema: Ray is not installed; `pip install 'ray[serve]==" in done.stderr
    assert "kind: RayService" in (tmp_path / "service.yaml").read_text()


def test_a_ray_without_serve_is_named(exported):
    serve = "raise ImportError('No module named grpc. You can run pip')"
    done = exported("ray-serve", {"serve/__init__.py": "", "serve/schema.py": serve})
    assert done.exit_code == 0
    assert "Ray 9.9 is here without Serve (No module named grpc); `pip install 'ray[serve]==9.9'`" in done.stderr
    assert "import_path: ray.serve.llm:build_openai_app" in done.stdout


def test_a_field_that_ray_does_not_know_is_an_error_that_names_it(exported):
    done = exported("ray-serve", {"serve/__init__.py": "", "serve/schema.py": SCHEMA})
    assert isinstance(done.exception, SkepError)
    assert (done.exception.exit_code, done.stdout) == (1, "")
    assert done.exception.message == "Ray 9.9 does not take `http_options`: is not a field that it knows"


def test_a_value_that_ray_refuses_is_an_error_that_names_its_place(exported):
    other = SCHEMA.replace("max_ongoing_requests: int", "max_ongoing_requests: list[int]")
    done = exported("kuberay", {"serve/__init__.py": "", "serve/schema.py": other})
    place = "`applications.0.args.llm_configs.0.deployment_config.max_ongoing_requests`"
    assert f"Ray 9.9 does not take {place}: Input should be a valid list" in done.exception.message


def test_a_preset_of_another_engine_is_refused_before_ray_is_asked():
    done = CliRunner().invoke(app, ["export", "gpt-oss-20b-4090", "--as", "ray-serve"])
    assert isinstance(done.exception, UserError)
    assert (done.exception.exit_code, done.stdout) == (2, "")
    assert done.exception.message == "`gpt-oss-20b-4090` runs llamacpp; Ray Serve LLM runs vLLM"
