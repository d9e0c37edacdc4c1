"""What tests that commit leave behind for the next one: nothing."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import User
from django.db import connection

from actions.records import ChainHead
from console.services import journal
from console.stores import console_chain
from tests.conftest import _empty_tables


@pytest.mark.django_db(transaction=True)
def test_rows_and_the_consoles_own_history_are_gone_and_the_history_stays_final() -> None:
    User.objects.create(username="left-behind")
    journal.record("exported", actor="operator eve")
    assert console_chain().read_head().number == 1

    _empty_tables()

    assert not User.objects.exists()
    assert console_chain().read_head() == ChainHead(chain="console", number=0, hash="0" * 64)
    with connection.cursor() as cursor:
        cursor.execute("SELECT tgenabled FROM pg_trigger WHERE tgname = 'entries_are_final'")
        assert cursor.fetchall() == [("A",)]


def test_a_browsers_loop_is_hidden_before_a_tests_transaction_begins_and_until_after_it_ends(
    request: pytest.FixtureRequest,
) -> None:
    names = request.fixturenames
    assert names.index("_no_loop_runs_but_the_tests_own") < names.index("_django_db_marker")
