"""The clocks of a call in doubt: how long the world can still show what happened, and since when somebody should have looked. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime

from actions.queries import IN_DOUBT, ActionItem
from actions.resolvers.verdict import Circumstances, evidence_until
from actions.rules import as_column
from actions.times import SECOND, to_datetime
from console.models import Policy
from console.services.evidence import Standing
from console.services.policies import windows_of

_CLOSE_S = 86_400
_CLOSE_SHARE = 10  # the last tenth of the retention


@dataclass(frozen=True, slots=True, kw_only=True)
class EvidenceClock:
    """Until when the world can still show what a call did, by the tool's policy and the store's clock."""

    until: datetime
    left_s: int
    retention_s: int
    is_default: bool  # nobody has set a policy for the tool: it is the console's own proposal

    @property
    def is_over(self) -> bool:
        return self.left_s <= 0

    @property
    def is_close(self) -> bool:
        """Less than a day, or less than a tenth of the retention."""
        return not self.is_over and (self.left_s < _CLOSE_S or self.left_s * _CLOSE_SHARE < self.retention_s)

    @property
    def exact(self) -> str:
        return f"{self.until:%Y-%m-%d %H:%M} UTC"

    @property
    def words(self) -> str:
        """`expired`; `18:40 UTC` within a day; `30 Dec`, with its year where that is another one."""
        if self.is_over:
            return "expired"
        if self.left_s < _CLOSE_S:
            return f"{self.until:%H:%M} UTC"
        year = f" {self.until.year}" if self.left_s > 300 * _CLOSE_S else ""
        return f"{self.until.day} {self.until:%b}{year}"


def evidence_clock(item: ActionItem, standing: Standing | None, policy: Policy) -> EvidenceClock | None:
    """None where nobody has to find anything out: the call ended, is running, is not external, or cannot be read."""
    if item.action is None or not _is_in_doubt(item):
        return None
    lease = replace(item.lease, holder=as_column(item.lease.holder)) if item.lease is not None else None
    circumstances = Circumstances(
        lease=lease,
        leases_known=item.leases_known,
        first_holder=standing.first_holder if standing else "",
        lost_at=standing.lost_at if standing else None,
    )
    until = evidence_until(item.action, circumstances, windows_of(policy))
    return EvidenceClock(
        until=to_datetime(until),
        left_s=(until - item.read_at) // SECOND,
        retention_s=policy.retention_s,
        is_default=not policy.version,
    )


def is_late(item: ActionItem, policy: Policy) -> bool:
    """In doubt for longer than its policy allows."""
    return _is_in_doubt(item) and item.age_s >= policy.sla_s


def _is_in_doubt(item: ActionItem) -> bool:
    return item.action is not None and item.state in IN_DOUBT.states and item.action.action_class in IN_DOUBT.classes
