"""What can go wrong with causal state, each with a stable code."""

from __future__ import annotations

from sgld.api.errors import SgldError, UserError


class StateError(SgldError, ValueError):
    """Causal state was used in a way it cannot serve; nothing has changed.

    Codes: `cache_misuse` (calls in a wrong order or of a wrong shape), `history_full` (the frames
    do not fit into what the policy keeps), `not_remembered` (a rollback further than `undo`),
    `policy_answer` (a policy returned what it must not).
    """

    code = "cache_misuse"


class SnapshotError(UserError, ValueError):
    """Bytes that are no snapshot, are damaged, or belong to another model or other settings.

    Codes: `snapshot_damaged`, `snapshot_version`, `snapshot_mismatch`.
    """

    code = "snapshot_damaged"
