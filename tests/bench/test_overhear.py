"""What is overheard on a server: of sessions that were open before, in whichever database; and the same asked again, barely."""

from __future__ import annotations

import json

import psycopg
import pytest

from bench.overhear import PRELOADED, heard, measure_floor, overhear
from local import postgres, processes


@pytest.mark.interop
def test_a_session_that_was_open_before_is_heard_with_the_rows_it_read_and_can_be_asked_again() -> None:
    home = processes.temporary_folder("overhear", mode=0o711)
    try:
        with postgres.start(home) as running:
            server, data = running.server, postgres.place_of_data(home)
            with psycopg.connect(server.url(), autocommit=True) as connection:
                for statement in PRELOADED:
                    connection.execute(statement)
            log = data.parent / f"{data.name}.log"
            with psycopg.connect(running.create_database("other"), autocommit=True) as early:
                early.execute("CREATE TABLE kept AS SELECT n FROM generate_series(1, 40) AS n")
                told = overhear(server, log, lambda: _work(early))
                early.execute("SELECT 'after'")

            floor = measure_floor(server, told.asked, times=2)
    finally:
        postgres.remove_data(home)

    assert (told.statements, told.rows, told.full_scans, told.writes) == (2, 80, ("kept", "kept"), 1)
    assert [(one.database, one.parameters) for one in told.asked] == [("other", ("it's", "7"))]
    assert len(floor) == 2
    assert min(floor) > 0


def _work(connection: psycopg.Connection[tuple[object, ...]]) -> None:
    assert connection.execute("SELECT n, %s::text FROM kept WHERE n < %s", ["it's", 7]).fetchall()[0] == (1, "it's")
    connection.execute("UPDATE kept SET n = -n WHERE n > 38")


def test_a_log_is_read_with_what_filters_removed_and_how_often_a_scan_ran() -> None:
    scan = {"Node Type": "Index Scan", "Relation Name": "r", "Actual Rows": 2.0, "Actual Loops": 3, "Rows Removed by Filter": 1}
    plan = {
        "Query Text": "SELECT 1",
        "Query Parameters": "$1 = 'a''b', $2 = NULL",
        "Plan": {"Node Type": "Limit", "Plans": [scan]},
    }
    log = (
        "2026-11-29 18:00:00.000 UTC [1] <console> LOG:  statement: BEGIN\n"
        "2026-11-29 18:00:00.001 UTC [1] <console> LOG:  duration: 1.0 ms  plan:\n\t"
        + json.dumps(plan, indent=2).replace("\n", "\n\t")
        + "\n2026-11-29 18:00:00.002 UTC [2] <> LOG:  checkpoint starting\n"
    )

    told = heard(log)

    assert (told.statements, told.rows, told.full_scans, told.writes) == (1, 9, (), 0)
    assert [(one.database, one.parameters) for one in told.asked] == [("console", ("a'b", None))]
