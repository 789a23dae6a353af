"""Fills in a geometry's parameter counts, which no configuration states."""

from __future__ import annotations

from dataclasses import replace

from skep.catalog.models import Geometry
from skep.planner.parts import parts_of


def counted(drawn: Geometry, total: float | None = None) -> Geometry:
    """`total` where it is known better than from the widths. A mixture reads its chosen experts for a token."""
    parts = parts_of(replace(drawn, params_total=0.0))  # with no total to scale to, parts are what the widths give
    if total is None:
        body = parts.attention + parts.linear + parts.mlp + parts.shared + parts.experts
        total = parts.embedding + parts.head + body
    active = total
    if drawn.is_moe:
        active -= parts.experts * (1 - drawn.experts_per_token / drawn.experts)
        active -= 0 if drawn.tied_embeddings else parts.embedding
    return replace(drawn, params_total=total, params_active=active if active > 0 else total)
