"""Who plays in the demo: which agent, on which task, and what befalls it. Plain data."""

from __future__ import annotations

import re
from collections.abc import Collection, Container, Sequence, Sized
from dataclasses import dataclass, replace

from demo.kinds import MAIN, OPS
from demo.scripts import SCRIPTS

SHORT_LEASE_S = 3.0  # an agent that is killed is interrupted after so long
LIVE_LEASE_S = 6.0  # renewed every third of it
NEXT_SHIFT = 20  # agents of a later shift carry a number higher by this
DOUBTED = ("send_email", "create_payment", "open_ticket")  # external tools whose calls stay open until a person decides
HANGS = "{tool} takes its time"  # the last words before a call that never returns


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One agent's part."""

    agent: str
    store: str = MAIN
    script: str
    kill_in: str = ""
    after: bool = False  # killed after the effect, not before it
    hang: str = ""
    is_resumed: bool = False  # by a process that cannot tell what happened either
    lease_s: float = SHORT_LEASE_S

    @property
    def last_call(self) -> str:
        """The tool whose call, once recorded, shows that the part has been played."""
        return self.kill_in or self.hang or [step.tool for step in SCRIPTS[self.script].steps if step.tool == "send_email"][-1]

    @property
    def as_resumed(self) -> Part:
        """The same agent's next process, which finds the call and cannot tell what became of it."""
        return replace(self, kill_in="")

    @property
    def leaves_doubt(self) -> bool:
        """Whether an external call is left open that nobody but a person settles."""
        return self.kill_in in DOUBTED


CAST = (
    Part(agent="ops-agent-4", script="deliveries", kill_in="open_ticket", after=True, is_resumed=True),
    Part(agent="billing-agent-2", script="refund", kill_in="create_payment", after=True),
    Part(agent="support-agent-7", script="replacement", kill_in="send_email", after=True),
    Part(agent="billing-agent-5", script="supplier", kill_in="create_payment"),
    Part(agent="billing-agent-9", script="machine", kill_in="create_payment", after=True),  # large: it needs a second person
    Part(agent="support-agent-3", script="reminder", kill_in="send_email"),
    Part(agent="ops-agent-1", script="cold-store", kill_in="open_ticket"),
    Part(agent="invoice-agent-6", script="month-end", kill_in="save_invoice", after=True),
    Part(agent="receipt-agent-8", script="receipt", kill_in="send_receipt", after=True),  # its resolver settles that by itself
    Part(agent="support-agent-9", script="address"),
)
LIVE = Part(agent="outreach-agent-1", script="win-back", hang="send_email", lease_s=LIVE_LEASE_S)
# Operations' own support desk numbers its agents as customer care does: one id, two agents, for they are in two stores.
TWIN = Part(agent="support-agent-7", store=OPS, script="scanner", kill_in="open_ticket", after=True)


def cast_of(stores: Container[str]) -> tuple[Part, ...]:
    """Who plays where there are these stores: operations' agents in a store of their own, if there is one."""
    if OPS not in stores:
        return CAST
    return (*(replace(part, store=OPS) if part.agent.startswith("ops-") else part for part in CAST), TWIN)


def called(part: Part, stores: Sized) -> str:
    """What people call an agent: by its id, and by its store where there are several."""
    return f"{part.store}/{part.agent}" if len(stores) > 1 else part.agent


def part_of(cast: Sequence[Part], store: str, agent: str) -> Part | None:
    """The part that an agent of a store plays, in whichever shift."""
    name, number = _split(agent)
    for part in (*cast, LIVE):
        its_name, its_number = _split(part.agent)
        is_same_number = number >= its_number and (number - its_number) % (1 if part is LIVE else NEXT_SHIFT) == 0
        if (store, name) == (part.store, its_name) and is_same_number:
            return replace(part, agent=agent)
    return None


def shift(cast: Sequence[Part], number: int) -> tuple[Part, ...]:
    """The killed and the finished agents of one shift, from 0."""
    return tuple(replace(part, agent=_renumbered(part.agent, number * NEXT_SHIFT)) for part in cast)


def still_to_play(cast: Sequence[Part], made: Collection[tuple[str, str]], doubts: int, *, wanted: int) -> list[Part]:
    """Who plays now of one store's cast: of the first shift those whose calls are not among `made` (agent, tool), and further
    shifts until enough external calls are in doubt, `doubts` of them already."""
    parts: list[Part] = []
    number = 0
    while number == 0 or doubts < wanted:
        new = [part for part in shift(cast, number) if (part.agent, part.last_call) not in made]
        doubts += sum(part.leaves_doubt for part in new)
        parts += new
        number += 1
    return parts


def next_live(taken: Container[str]) -> Part:
    """A live agent whose id nobody has had."""
    number = 0
    while (agent := _renumbered(LIVE.agent, number)) in taken:
        number += 1
    return replace(LIVE, agent=agent)


def _split(agent: str) -> tuple[str, int]:
    found = re.fullmatch(r"(.*)-(\d+)", agent)
    return (found[1], int(found[2])) if found else (agent, -1)


def _renumbered(agent: str, by: int) -> str:
    name, number = _split(agent)
    return f"{name}-{number + by}"
