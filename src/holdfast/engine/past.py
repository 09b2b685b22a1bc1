"""What the attempts of a run left in its store: who they were, and how they ended."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import NotFound
from ..spec import names
from ..spec.attempts import Verdict
from ..spec.ports import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class PastAttempt:
    """One attempt. What cannot be read is None: a damaged claim still counts as an attempt."""

    attempt: int
    holder: Mapping[str, Any] | None
    claimed_at: float | None
    verdict: Verdict | None
    """None while it runs, and when it died together with its keeper."""


def past_attempts(store: Store) -> list[PastAttempt]:
    """Read every attempt, oldest first. Raises: StoreError."""
    numbers = (names.attempt_of_claim(name) for name in store.list(names.ATTEMPTS))
    return [_read_attempt(store, number) for number in sorted(n for n in numbers if n is not None)]


def read_verdict(store: Store, attempt: int) -> Verdict | None:
    """Read how an attempt ended; None when nothing readable says so. Raises: StoreError other than NotFound."""
    body = _read(store, names.verdict(attempt))
    try:
        return Verdict(
            attempt=attempt,
            ending=body["ending"],
            step=int(body["step"]),
            checkpoint=body["checkpoint"],
            detail=str(body["detail"]),
            ended_at=float(body["ended_at"]),
        )
    except (KeyError, TypeError, ValueError):
        return None


def _read_attempt(store: Store, attempt: int) -> PastAttempt:
    claim = _read(store, names.claim(attempt))
    holder, claimed_at = claim.get("holder"), claim.get("claimed_at")
    return PastAttempt(
        attempt=attempt,
        holder=holder if isinstance(holder, dict) else None,
        claimed_at=float(claimed_at) if isinstance(claimed_at, int | float) else None,
        verdict=read_verdict(store, attempt),
    )


def _read(store: Store, name: str) -> dict[str, Any]:
    try:
        body = json.loads(store.read(name))
    except (NotFound, ValueError):
        return {}
    return body if isinstance(body, dict) else {}
