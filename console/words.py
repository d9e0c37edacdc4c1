"""The words of the screens for states, classes, outcomes and answers: one meaning each, used wherever they appear."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from actions.facts import CallKind
from actions.records import ActionClass, ActionState


class Word(NamedTuple):
    """A short word, and the sentence that says what it means."""

    word: str
    says: str


STATES: Mapping[str, Word] = {
    ActionState.INTERRUPTED: Word("interrupted", "its process died and nobody resumed"),
    ActionState.UNKNOWN: Word("unknown", "a resume could not tell whether it happened"),
    ActionState.UNCLEAR: Word("unclear", "may be left over from an earlier process"),
    ActionState.IN_FLIGHT: Word("in flight", "its process is alive: hands off"),
    ActionState.DONE: Word("done", "it happened"),
    ActionState.FAILED: Word("failed", "it did not happen"),
    ActionState.ABANDONED: Word("abandoned", "given up: nobody will find out, or it will not be run again"),
    ActionState.UNREADABLE: Word("unreadable", "the record cannot be decoded; nothing is guessed about it"),
}

LEASES_UNKNOWN = "nobody can tell whether its process is alive"
"""Of an open call in a store whose leases cannot be read."""


def state_says(state: ActionState, *, leases_known: bool) -> str:
    """What a state means, where it is known who holds an agent and where it is not."""
    return LEASES_UNKNOWN if state is ActionState.UNCLEAR and not leases_known else STATES[state].says


CLASSES: Mapping[str, str] = {
    ActionClass.EXTERNAL: "changes the world each time it runs",
    ActionClass.IDEMPOTENT: "a second run with the same key is the same effect",
    ActionClass.PURE: "only reads",
}

GROUPS: Mapping[int, str] = {0: "Money", 1: "Cannot be taken back", 2: "Everything else"}
"""Headings of the queue by risk rank."""
UNREADABLE_GROUP = "Unreadable records"


class Outcome(NamedTuple):
    """One choice of the decision form."""

    value: str
    label: str  # what the person says
    says: str  # what it does
    commit: str  # on the button that writes it

    @property
    def proposal(self) -> str:
        """On the button where a second person has to approve it."""
        return self.commit.replace("Write", "Propose", 1)

    @property
    def only_outside_pure(self) -> bool:
        """A call that only reads neither happened to the world nor failed to."""
        return self.value in ("done", "failed")


OUTCOMES: tuple[Outcome, ...] = (
    Outcome("done", "It happened", "The agent reads that it is done.", "Write: it happened"),
    Outcome("failed", "It did not happen", "The agent reads that it failed.", "Write: it did not happen"),
    Outcome("abandoned", "Give up on it", "The agent reads that nobody will find out.", "Write: given up"),
    Outcome("later", "Cannot tell yet", "A note for people. The agent reads nothing.", "Keep the note"),
)


class Truth(NamedTuple):
    """One choice of the correction form."""

    value: str
    label: str
    commit: str


TRUTHS: tuple[Truth, ...] = (
    Truth("done", "It happened", "Write the correction: it happened"),
    Truth("failed", "It did not happen", "Write the correction: it did not happen"),
    Truth("unknown", "Nobody knows", "Write the correction: nobody knows"),
)
OUTCOME_LABELS: Mapping[str, str] = {outcome.value: outcome.label for outcome in OUTCOMES}

_EMAIL = {
    "done": ("Found in the Sent folder", "The recipient confirmed it"),
    "failed": ("Not in the Sent folder", "The mail server refused it"),
}
_MONEY = {
    "done": ("Seen in the provider's dashboard", "The customer confirmed it"),
    "failed": ("Not in the provider's log", "The provider declined it"),
}
_ANY = {
    "done": ("Seen in the target system", "The customer confirmed it"),
    "failed": ("Not in the target system's log", "The target system refused it"),
}
_ALWAYS = {
    "abandoned": ("No longer needed", "Done by hand instead", "Nobody can find out any more"),
    "later": ("The provider cannot be reached", "Waiting for the customer's answer"),
}


def presets(kind: CallKind) -> Mapping[str, tuple[str, ...]]:
    """Reasons offered for a kind of call, by outcome: what was looked at, never what is believed."""
    return {**{CallKind.EMAIL: _EMAIL, CallKind.MONEY: _MONEY}.get(kind, _ANY), **_ALWAYS}


ENTRY_KINDS: Mapping[str, str] = {
    "settled": "decided",
    "corrected": "corrected it",
    "settling": "began to write",
    "proposed": "proposed",
    "approved": "approved",
    "turned_down": "turned it down",
    "broke_glass": "broke the glass",
    "held": "holds back",
    "waiting": "decided, waits for the lease",
    "withdrawn": "withdrew",
    "refused": "was refused",
    "evicted": "took the lease away",
    "observed": "saw it become",
    "gave_up": "gave up asking",
    "incident": "found it after all",
    "incident_closed": "closed the incident",
    "prepared": "prepared the store",
    "asked": "was asked about it, and says",
    "policy_changed": "changed the policy of this tool",
    "resolver_changed": "changed the resolver",
    "hook_changed": "changed where providers call for",
    "channel_changed": "changed what is told to",
    "person_added": "added the account",
    "person_changed": "changed the account",
    "role_changed": "changed the roles of",
    "password_link": "made a link for a new password of",
    "password_changed": "set the password of",
    "second_factor_changed": "changed the second factor of",
    "sign_on_linked": "linked single sign-on to",
    "sessions_ended": "ended sessions of",
    "token_created": "made a token of",
    "token_revoked": "took a token back of",
    "handed_over": "handed calls over to",
    "denied": "was turned away from",
    "locked_out": "gave too many wrong passwords of",
    "exported": "took the history out",
    "retained": "removed the oldest entries",
    "revealed": "saw what is hidden",
    "run_started": "started the run",
    "run_cancelled": "cancelled the run",
    "run_resumed": "resumed the run",
    "run_restarted": "began anew the run",
    "run_marked": "said what became of the run",
    "run_undoing": "has taken back what was done by the run",
    "run_answered": "answered what was asked by the run",
    "unreadable": "entry cannot be read",
}


RUN_EVENTS: Mapping[str, Word] = {
    "started": Word("started", "it waits for a worker"),
    "step": Word("step", "one step of its graph, and its state kept"),
    "resumed": Word("resumed", "it goes on from its last checkpoint"),
    "parked": Word("parked", "it stands still and holds no worker"),
    "asked": Word("asked", "a call waits for a person"),
    "answered": Word("answered", "a person said whether a call is made"),
    "expired": Word("expired", "nobody answered in time; nobody agreed, and nobody refused"),
    "failed": Word("failed", "it does not go on by itself"),
    "done": Word("done", "it has come to its end"),
    "cancelled": Word("cancelled", "a person stopped it"),
    "restarted": Word("restarted", "another run began from the beginning"),
    "undoing": Word("taking back", "what happened is taken back, newest first"),
    "undone": Word("taken back", "one call was taken back"),
    "undo_stopped": Word("taking back stopped", "a person has to say how it goes on"),
}
"""What can happen to a run (models/run.py, RunEvent)."""

ENTRY_OUTCOMES = ("done", "failed", "abandoned", "unknown")
"""What an entry can say that a call became; `unknown` only of what was seen and is nobody's here."""


class Became(NamedTuple):
    """What became of one item of a batch: a word, the state whose colour and the shape that stand for it, and what it means."""

    word: str
    state: str
    shape: str
    says: str


_NOT = ("refused", "differs")
BECAME: Mapping[str, Became] = {
    "ready": Became("ready", "waiting", "later", "it can be decided"),
    "left_out": Became("left out", "abandoned", "not-told", "it could not be decided when the preview was made"),
    "queued": Became("not begun", "waiting", "later", "its turn comes"),
    "begun": Became("at it", "waiting", "waiting", "a worker is at it"),
    "written": Became("written", "done", "done", "it stands in its agent's records"),
    "proposed": Became("proposed", "waiting", "waiting", "it waits for a second person"),
    "held": Became("held", "waiting", "waiting", "it can be undone for some seconds"),
    "waiting": Became("waiting", "waiting", "waiting", "its agent is alive; it is written once the lease is free"),
    "unknown": Became(
        "not known yet", "unknown", "unknown", "no answer came; it is asked again by itself and never written twice"
    ),
    "withdrawn": Became("withdrawn", "withdrawn", "withdrawn", "it will not be written"),
    "cancelled": Became("cancelled", "withdrawn", "withdrawn", "it was not begun, and is not decided"),
    "closed": Became("ended first", *_NOT, "somebody else was first; nothing was written"),
    "pending": Became("decided by others", *_NOT, "another decision was on its way; nothing was written"),
    "changed": Became("changed", *_NOT, "it was not any more what the preview showed; nothing was written"),
    "contradicted": Became("contradicted", *_NOT, "the world says otherwise; nothing was written"),
    "no_right": Became("no right", *_NOT, "nothing was written"),
    "missing": Became("not there", *_NOT, "nothing was written"),
    "unavailable": Became("no answer", *_NOT, "its store did not answer; nothing was written"),
    "read_only": Became("read-only", *_NOT, "its store cannot be written; nothing was"),
    "refused": Became("refused", *_NOT, "nothing was written"),
}
"""Every outcome of an item, the good ones first."""
BATCH_STATES: Mapping[str, Word] = {
    "draft": Word("preview", "nothing is decided yet"),
    "running": Word("running", "a worker decides one after the other"),
    "cancelled": Word("cancelled", "what was decided stays; the rest is not decided"),
    "undoing": Word("withdrawing", "what is not written yet is being withdrawn"),
    "undone": Word("withdrawn", "what was not written yet is withdrawn, as far as that was possible"),
    "finished": Word("finished", "every call has its outcome"),
}


# --- runs ------------------------------------------------------------------------------------------------------------


class RunWord(NamedTuple):
    """What a run or an approval is in: a word, the state whose colour and the shape that stand for it, and what it means."""

    word: str
    state: str
    shape: str
    says: str


RUN_STATUSES: Mapping[str, RunWord] = {
    "running": RunWord("running", "in_flight", "in_flight", "a worker advances it, step by step"),
    "waiting_approval": RunWord("waits for approval", "waiting", "waiting", "a person has to agree to a call; no worker is held"),
    "failed": RunWord("failed", "failed", "failed", "it stopped; what its calls did stands in their records"),
    "done": RunWord("done", "done", "done", "it came to its end"),
    "cancelled": RunWord("cancelled", "withdrawn", "withdrawn", "a person stopped it; what had happened stays"),
}
PARKED: Mapping[str, RunWord] = {
    "open_calls": RunWord("a call is in doubt", "unknown", "unknown", "it goes on by itself once every call is settled"),
    "lease": RunWord("its agent is held", "waiting", "waiting", "another process holds its agent; it goes on after that"),
    "store": RunWord(
        "no answer", "waiting", "waiting", "its store or its checkpoints do not answer; it is tried again by itself"
    ),
}
UNDOING: Mapping[str, RunWord] = {
    "running": RunWord("being taken back", "in_flight", "in_flight", "its calls are taken back, newest first"),
    "stopped": RunWord(
        "taking back stopped", "unknown", "unknown", "a compensation failed or is in doubt: a person says how it goes on"
    ),
    "done": RunWord("taken back", "abandoned", "withdrawn", "everything that can be taken back is"),
}
APPROVAL_STATES: Mapping[str, RunWord] = {
    "pending": RunWord("waits for approval", "waiting", "waiting", "nothing is called before somebody answers"),
    "approved": RunWord("approved", "done", "done", "it is called as it was asked"),
    "edited": RunWord("approved with changes", "done", "done", "it is called with the changed arguments"),
    "rejected": RunWord("rejected", "failed", "failed", "it is not called; the agent reads that a person said no"),
    "responded": RunWord("answered", "abandoned", "withdrawn", "it is not called; the agent reads an answer in its place"),
    "expired": RunWord("expired", "abandoned", "later", "nobody answered in time: nobody agreed, and nobody refused"),
    "void": RunWord("void", "abandoned", "abandoned", "its run was cancelled, failed or asks anew: an answer would reach nobody"),
}


class GateAnswer(NamedTuple):
    """One choice of the approval form."""

    value: str
    label: str
    says: str
    commit: str  # on the button


GATE_ANSWERS: tuple[GateAnswer, ...] = (
    GateAnswer("approve", "Approve", "It is called exactly as shown.", "Approve: let it be called"),
    GateAnswer("edit", "Edit", "It is called with what you change.", "Look at the changes"),
    GateAnswer("reject", "Reject", "It is not called. The agent reads that a person said no.", "Reject: it is not called"),
    GateAnswer("respond", "Respond", "It is not called. The agent reads your words in its place.", "Respond in its place"),
)
