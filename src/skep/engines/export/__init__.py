"""`skep export`: a layout as text for those who start it without skep. Nothing is started or read here."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from skep.engines.export.compose import compose
from skep.engines.export.container import docker
from skep.engines.export.recipe import Recipe
from skep.engines.export.shell import shell
from skep.engines.export.systemd import systemd

FORMS: Mapping[str, Callable[[Recipe], str]] = {
    "shell": shell,
    "docker": docker,
    "compose": compose,
    "systemd": systemd,
}


def export(recipe: Recipe, form: str) -> str:
    return FORMS[form](recipe)
