"""`skep.toml` and the environment, checked here and turned into settings. The only user of pydantic for files."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from skep.errors import UserError
from skep.settings import DEFAULT_PORT, EMBEDDED_MODEL, Gateway, Paths, Serve, Settings
from skep.units import parse_seconds


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class ServeTable(_Table):
    model: str = EMBEDDED_MODEL
    engine: str = "embedded"
    replicas: int = Field(default=1, ge=1, le=64)
    slots: int = Field(default=4, ge=1, le=1024)
    context: int = Field(default=2048, ge=64)
    threads: int | None = Field(default=None, ge=1)
    engine_port: int = Field(default=0, ge=0, le=65535)
    extra: list[str] = Field(default_factory=list)

    def to_serve(self) -> Serve:
        return Serve(
            model=self.model,
            engine=self.engine,
            replicas=self.replicas,
            slots=self.slots,
            context_tokens=self.context,
            threads=self.threads,
            engine_port=self.engine_port,
            extra=tuple(self.extra),
        )


class GatewayTable(_Table):
    host: str = "127.0.0.1"
    port: int = Field(default=DEFAULT_PORT, ge=0, le=65535)
    max_queue: int = Field(default=256, ge=0)
    max_wait: str = "15m"

    def to_gateway(self, api_key: str | None) -> Gateway:
        return Gateway(self.host, self.port, self.max_queue, _seconds(self.max_wait, "gateway.max_wait"), api_key)


class SettingsFile(_Table):
    gateway: GatewayTable = GatewayTable()
    serve: list[ServeTable] = Field(default=[ServeTable()], min_length=1)
    drain: str = "30s"
    start_deadline: str = "3m"

    def to_settings(self, env: Mapping[str, str]) -> Settings:
        return Settings(
            gateway=self.gateway.to_gateway(env.get("SKEP_API_KEY") or None),
            serve=tuple(table.to_serve() for table in self.serve),
            drain_s=_seconds(self.drain, "drain"),
            start_deadline_s=_seconds(self.start_deadline, "start_deadline"),
        )


def _seconds(text: str, key: str) -> float:
    try:
        return parse_seconds(text)
    except UserError as error:
        raise UserError(f"`{key}`: {error.message}", hint=error.hint) from None


def load_settings(path: Path | None, paths: Paths, env: Mapping[str, str]) -> Settings:
    """From the file given; else `skep.toml` here or in the configuration folder; else the embedded model."""
    candidates = [path] if path is not None else [Path("skep.toml"), paths.config / "skep.toml"]
    for candidate in candidates:
        if candidate.exists():
            return parse_settings(_read(candidate), str(candidate), env)
    if path is not None:
        hint = "leave --config out for the embedded model"
        raise UserError(f"the configuration file `{path}` does not exist", hint=hint)
    return parse_settings({}, "environment", env)


def parse_settings(document: dict[str, Any], origin: str, env: Mapping[str, str]) -> Settings:
    try:
        return SettingsFile.model_validate(document).to_settings(env)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        if first["type"] == "extra_forbidden":
            known = ", ".join(_known_keys(first["loc"]))
            raise UserError(f"{origin}: `{where}` is an unknown key", hint=f"known here: {known}") from None
        message = f"{origin}: `{where}` = {first['input']!r}: {first['msg'].lower()}"
        raise UserError(message, hint="docs/configuration.md has an example of every key") from None
    except UserError as error:
        raise UserError(f"{origin}: {error.message}", hint=error.hint) from None


def _known_keys(place: tuple[int | str, ...]) -> list[str]:
    tables: dict[str, type[_Table]] = {"gateway": GatewayTable, "serve": ServeTable}
    table = tables.get(str(place[0]), SettingsFile) if len(place) > 1 else SettingsFile
    return list(table.model_fields)


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UserError(f"{path} cannot be read: {error}", hint="docs/configuration.md has an example") from None
