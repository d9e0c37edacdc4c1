"""Canonical JSON, and the digest that binds a decision to what was shown."""

from __future__ import annotations

import hashlib
import json

from actions.records import Action, ActionEnd, ActionRef, Correction


def canonical_json(value: object) -> str:
    """One text for one value: sorted keys, no spaces, ASCII only, so that NUL and lone surrogates survive any database.

    Raises:
        ValueError: NaN or an infinity, which JSON does not have.
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def sha256_text(text: str) -> str:
    """SHA-256 of a text, 64 hex digits. Lone surrogates are hashed as they are: an agent may have written some."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def action_digest(action: Action, whole_args: str) -> str:
    """What was shown: tool, whole arguments, class, key, epoch at begin, status (contract, Decisions)."""
    return sha256_text(canonical_json({**_claim(action, whole_args), "status": action.status}))


def claim_digest(action: Action, whole_args: str) -> str:
    """The same without the status: a kept decision survives a resume that turns `started` into `unknown`."""
    return sha256_text(canonical_json(_claim(action, whole_args)))


def decision_digest(ref: ActionRef, end: ActionEnd) -> str:
    """What a decision id stands for; the same id with another digest is another decision."""
    return sha256_text(
        canonical_json(
            {
                "agent": ref.agent,
                "seq": ref.seq,
                "outcome": end.status,
                "reason": end.reason,
                "resolution": end.resolution,
                "result": end.result,
                "error": end.error,
            }
        )
    )


def correction_digest(ref: ActionRef, correction: Correction) -> str:
    """What the id of a correction stands for; never the same as a decision's."""
    said = {"outcome": correction.outcome, "reason": correction.reason, "resolution": correction.resolution}
    return sha256_text(canonical_json({"agent": ref.agent, "seq": ref.seq, "corrects": True, **said}))


def eviction_digest(agent: str, holder: str, reason: str, actor: str) -> str:
    """What the id of an eviction stands for; `holder` is the SHA-256 of the holder's name, which a form may carry in its place."""
    return sha256_text(canonical_json({"agent": agent, "holder": holder, "reason": reason, "actor": actor}))


def _claim(action: Action, whole_args: str) -> dict[str, object]:
    return {
        "tool": action.tool,
        "args": whole_args,
        "class": action.action_class,
        "key": action.key,
        "epoch": action.epoch,
    }
