"""Where the states of graphs are kept: what is read back, what is refused, and what a database that is gone costs a run."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connections
from django.utils import timezone
from langgraph.checkpoint.base import empty_checkpoint

from actions.errors import StoreUnavailable
from console import run_checkpoints as kept
from console.models import Run
from console.run_checkpoints import StateRefused
from console.stores import run_checkpoints
from tests.console.run_kinds import effects
from tests.console.runs import SEND, drive, start
from tests.recall_writer import RecordWriter

pytestmark = [pytest.mark.django_db]
RAN: list[str] = []


class Trap:
    """What stands in a database must not be called by being read."""

    def __init__(self, text: str) -> None:
        RAN.append(text)


def put(saver: Any, thread: str, **values: Any) -> None:
    checkpoint = {**empty_checkpoint(), "channel_values": values, "channel_versions": dict.fromkeys(values, "1")}
    config = {"configurable": {"thread_id": thread, "checkpoint_ns": ""}}
    saver.put(config, checkpoint, {"source": "input", "step": -1, "parents": {}}, dict.fromkeys(values, "1"))


def found(saver: Any, thread: str) -> Any:
    return saver.get_tuple({"configurable": {"thread_id": thread, "checkpoint_ns": ""}})


@pytest.mark.parametrize(
    ("name", "value"),
    [("nul", "a\x00b"), ("half", "\ud800"), ("large", ["x" * (kept.MAX_STATE_BYTES + 1)]), ("pickle", {1: lambda: 1})],
)
def test_a_state_that_cannot_be_kept_is_refused_and_none_of_it_stands_there(name: str, value: Any) -> None:
    with run_checkpoints() as saver, pytest.raises((StateRefused, TypeError)):
        put(saver, f"refused-{name}", channel=value)
    with run_checkpoints() as saver:
        assert found(saver, f"refused-{name}") is None


def test_what_stands_there_is_read_as_data_and_never_called() -> None:
    import ormsgpack

    called = ormsgpack.Ext(0, ormsgpack.packb((Trap.__module__, "Trap", "ran")))
    with run_checkpoints() as saver:
        put(saver, "trap", channel=["safe"])
        saver.conn.execute(
            "UPDATE checkpoint_blobs SET blob = %s WHERE thread_id = 'trap' AND channel = 'channel'", [ormsgpack.packb(called)]
        )
        read = found(saver, "trap").checkpoint["channel_values"]["channel"]
        saver.conn.execute("UPDATE checkpoint_blobs SET type = 'pickle' WHERE thread_id = 'trap'")
        with pytest.raises(NotImplementedError):
            found(saver, "trap")

    assert not isinstance(read, Trap)
    assert RAN == []


def test_a_database_that_is_gone_lets_the_run_wait_and_names_no_password(
    memory: RecordWriter, ana: User, errands: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = start(ana, SEND)
    gone = {**connections["default"].settings_dict, "PORT": "1", "HOST": "127.0.0.1", "PASSWORD": "secret-pw"}
    with monkeypatch.context() as patch:
        patch.setattr(connections["default"], "settings_dict", gone)
        with pytest.raises(StoreUnavailable) as refused, run_checkpoints():
            pass
        drive(run)
    assert (run.status, run.parked, effects("send")) == ("running", "store", [])
    assert "secret-pw" not in f"{refused.value}{run.problem}"
    Run.objects.update(due_at=timezone.now())

    drive(run)

    assert (run.status, run.parked, len(effects("send"))) == ("done", "", 1)
