"""`skep export`: a layout as text for those who start it without skep. Nothing is started or read here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from skep.engines.export.compose import compose
from skep.engines.export.container import docker
from skep.engines.export.kuberay import kuberay, kuberay_document
from skep.engines.export.proxy import haproxy, nginx
from skep.engines.export.ray_serve import ray_serve, serve_document
from skep.engines.export.recipe import Recipe
from skep.engines.export.shell import shell
from skep.engines.export.systemd import systemd

FORMS: Mapping[str, Callable[[Recipe], str]] = {
    "shell": shell,
    "docker": docker,
    "compose": compose,
    "systemd": systemd,
    "nginx": nginx,
    "haproxy": haproxy,
}
RAY_FORMS: Mapping[str, Callable[[Recipe], str]] = {"ray-serve": ray_serve, "kuberay": kuberay}  # of vLLM only
RAY_DOCUMENTS: Mapping[str, Callable[[Recipe], dict[str, Any]]] = {  # what Ray reads of them
    "ray-serve": serve_document,
    "kuberay": kuberay_document,
}


def export(recipe: Recipe, form: str) -> str:
    return {**FORMS, **RAY_FORMS}[form](recipe)
