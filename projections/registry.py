"""The folds that come with the library, by the name that `eventlog fold -p NAME` takes."""

from __future__ import annotations

from typing import Any

from eventlog.projections.counts import COUNTS
from eventlog.projections.deliveries import DELIVERIES
from eventlog.projections.effects import EFFECTS
from eventlog.projections.projection import Projection
from eventlog.projections.status import STATUS
from eventlog.projections.transcript import TRANSCRIPT

__all__ = ["BUILT_IN"]

BUILT_IN: dict[str, Projection[Any]] = {projection.name: projection for projection in (COUNTS, DELIVERIES, EFFECTS, STATUS, TRANSCRIPT)}
