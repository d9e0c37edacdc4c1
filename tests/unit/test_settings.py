"""Settings: what each reader takes, what it refuses and how it says so, and what production insists on."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from django.core.exceptions import ImproperlyConfigured
from psycopg.conninfo import make_conninfo

from console.env import Environment, with_demo_settings

ROOT = Path(__file__).resolve().parent.parent.parent
KEY = base64.b64encode(bytes(32)).decode()
OTHER_KEY = base64.urlsafe_b64encode(b"\xff" * 32).decode().rstrip("=")


def env(**values: str) -> Environment:
    return Environment(values)


@pytest.mark.parametrize(
    ("value", "meant"), [("1", True), ("true", True), ("True", True), ("0", False), ("false", False), ("", True)]
)
def test_booleans_are_1_0_true_false_and_empty_is_unset(value: str, meant: bool) -> None:
    assert env(DEBUG=value).boolean("DEBUG", True) is meant


def test_another_boolean_is_refused_with_name_value_and_what_is_allowed() -> None:
    with pytest.raises(ImproperlyConfigured, match="^DEBUG is 'yes'; allowed: 1, true, 0, false$"):
        env(DEBUG="yes").boolean("DEBUG", False)


SSO = {"OIDC_ISSUER": "https://id.example.com", "OIDC_CLIENT_ID": "settle", "OIDC_CLIENT_SECRET": "s3cret"}


def test_single_sign_on_is_all_or_nothing_and_shows_no_secret() -> None:
    assert env().single_sign_on(production=True) is None
    found = env(**SSO, OIDC_ALLOWED_DOMAINS="Example.com, @example.org").single_sign_on(production=True)

    assert found is not None
    assert found.domains == ("example.com", "example.org")
    assert "s3cret" not in repr(found)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"OIDC_CLIENT_SECRET": ""}, "^OIDC_CLIENT_SECRET is not set; single sign-on needs"),
        ({"OIDC_ISSUER": ""}, "^OIDC_ISSUER is not set; single sign-on needs"),
        (
            {"OIDC_ISSUER": "http://id.example.com"},
            "^OIDC_ISSUER is 'http://id.example.com'; allowed: addresses that begin with https$",
        ),
        ({"OIDC_ISSUER": "https://"}, "it names no host"),
        ({"OIDC_ALLOWED_DOMAINS": "*.example.com"}, "^OIDC_ALLOWED_DOMAINS holds '\\*.example.com'; allowed: domains"),
    ],
)
def test_single_sign_on_that_cannot_be_is_refused(change: dict[str, str], says: str) -> None:
    with pytest.raises(ImproperlyConfigured, match=says):
        env(**(SSO | change)).single_sign_on(production=True)


def test_domains_without_a_provider_are_refused() -> None:
    with pytest.raises(ImproperlyConfigured, match="^OIDC_ALLOWED_DOMAINS is set and OIDC_ISSUER is not"):
        env(OIDC_ALLOWED_DOMAINS="example.com").single_sign_on(production=False)


@pytest.mark.parametrize("value", ["0", "721", "ten", "-1", "1.5", "٣"])
def test_a_number_outside_its_range_is_refused(value: str) -> None:
    with pytest.raises(ImproperlyConfigured, match="SESSION_IDLE_MINUTES is .* whole numbers from 1 to 720"):
        env(SESSION_IDLE_MINUTES=value).minutes("SESSION_IDLE_MINUTES", 30, highest=720)


def test_a_database_is_reached_by_tcp() -> None:
    database = env(DATABASE_URL="postgres://an%40a:p%2Fw@db.internal:5433/set%20tle?sslmode=require").database("DATABASE_URL")

    options = database.pop("OPTIONS")
    assert options["sslmode"] == "require"
    assert database == {
        "NAME": "set tle",
        "USER": "an@a",
        "PASSWORD": "p/w",
        "HOST": "db.internal",
        "PORT": "5433",
    }


def test_a_database_that_vanishes_is_noticed_soon_unless_its_address_says_otherwise() -> None:
    url = "postgres://settle@db/console"

    usual = env(DATABASE_URL=url).database("DATABASE_URL")["OPTIONS"]
    told = env(DATABASE_URL=f"{url}?connect_timeout=30&tcp_user_timeout=60000").database("DATABASE_URL")["OPTIONS"]

    assert 0 < int(usual["connect_timeout"]) <= 10
    assert 0 < int(usual["tcp_user_timeout"]) <= 15_000
    idle = int(usual["keepalives_idle"]) + int(usual["keepalives_interval"]) * int(usual["keepalives_count"])
    assert 0 < idle <= 15
    assert told == usual | {"connect_timeout": "30", "tcp_user_timeout": "60000"}
    make_conninfo(**usual)  # libpq knows each of them


def test_a_database_is_reached_by_a_socket_folder() -> None:
    database = env(DATABASE_URL="postgres://settle@/console?host=/var/run/postgresql").database("DATABASE_URL")

    assert (database["NAME"], database["USER"], database["HOST"], database["PORT"]) == (
        "console",
        "settle",
        "/var/run/postgresql",
        "",
    )


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("mysql://u@h/db", "begin with postgres, postgresql"),
        ("console", "begin with postgres, postgresql"),
        ("postgres://u@h/", "names no database"),
        ("postgres://u@h:port/db", "port is not a number"),
        ("postgres://u@[::1/db", "is no address"),
        ("postgres://u@h/db?schema=recall", "parameter 'schema'"),
    ],
)
def test_a_wrong_database_address_is_refused_in_one_line(url: str, complaint: str) -> None:
    with pytest.raises(ImproperlyConfigured, match=complaint) as refusal:
        env(DATABASE_URL=url).database("DATABASE_URL")
    assert "\n" not in str(refusal.value)


def test_no_message_shows_a_password() -> None:
    with pytest.raises(ImproperlyConfigured) as refusal:
        env(DATABASE_URL="mysql://ana:hunter2@h/db?password=hunter3").database("DATABASE_URL")
    assert "hunter" not in str(refusal.value)
    assert "ana:***@h" in str(refusal.value)


def test_stores_keep_their_order_and_their_escaped_spaces() -> None:
    stores = env(
        ACTION_STORES="b=postgres://u@h/my%20db?schema=recall  a=mongodb://h/db c=polign+http://h:23000 d=memory:"
    ).stores("ACTION_STORES")

    assert list(stores.items()) == [
        ("b", "postgres://u@h/my%20db?schema=recall"),
        ("a", "mongodb://h/db"),
        ("c", "polign+http://h:23000"),
        ("d", "memory:"),
    ]


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        ("postgres://u@h/db", "allowed: name=url"),
        ("Main=memory:", "allowed: name=url"),
        ("a=memory: a=memory:", "names the store 'a' twice"),
        ("a=redis://h", r"ACTION_STORES \(a\) is 'redis://h'"),
        ("a=postgres://u@h/my db", "allowed: name=url"),
    ],
)
def test_wrong_stores_are_refused(value: str, complaint: str) -> None:
    with pytest.raises(ImproperlyConfigured, match=complaint):
        env(ACTION_STORES=value).stores("ACTION_STORES")


@pytest.mark.parametrize(
    ("variables", "url"),
    [
        ({"RECALL_BACKEND": "pgvector", "RECALL_BACKEND_URL": "postgres://u@h/db"}, "postgres://u@h/db"),
        (
            {"RECALL_BACKEND": "pgvector", "RECALL_BACKEND_URL": "postgres://u@h/db?schema=memory", "RECALL_BACKEND_KEY": "p/w"},
            "postgres://u:p%2Fw@h/db?schema=memory",
        ),
        (
            {"RECALL_BACKEND": "mongodb", "RECALL_BACKEND_URL": "mongodb://u:in@h/db", "RECALL_BACKEND_KEY": "out"},
            "mongodb://u:in@h/db",
        ),
        (
            {
                "RECALL_BACKEND": "polign",
                "RECALL_BACKEND_URL": "http://h:23000",
                "RECALL_BACKEND_KEY": "k",
                "RECALL_COLLECTION": "team",
            },
            "polign+http://:k@h:23000?collection=team",
        ),
    ],
)
def test_recalls_own_variables_name_the_store_main(variables: dict[str, str], url: str) -> None:
    assert env(**variables).stores("ACTION_STORES") == {"main": url}


def test_action_stores_win_over_recalls_variables() -> None:
    assert env(ACTION_STORES="a=memory:", RECALL_BACKEND="qdrant").stores("ACTION_STORES") == {"a": "memory:"}


@pytest.mark.parametrize("backend", ["local", "qdrant"])
def test_a_backend_whose_records_cannot_be_read_is_refused(backend: str) -> None:
    with pytest.raises(ImproperlyConfigured, match="allowed here: pgvector, mongodb, polign"):
        env(RECALL_BACKEND=backend, RECALL_BACKEND_URL="x").stores("ACTION_STORES")


def test_keys_are_32_bytes_and_several_are_kept_in_order() -> None:
    assert env(SECRETS_KEY=f"{OTHER_KEY} {KEY}").keys("SECRETS_KEY") == (OTHER_KEY, KEY)


@pytest.mark.parametrize("key", ["short", base64.b64encode(bytes(31)).decode(), "!" * 44])
def test_another_key_is_refused_and_not_shown(key: str) -> None:
    with pytest.raises(ImproperlyConfigured, match="SECRETS_KEY holds as key 1 .* 32 bytes in base64") as refusal:
        env(SECRETS_KEY=key).keys("SECRETS_KEY")
    assert repr(key) not in str(refusal.value)


def test_the_broker_may_be_memory_and_is_when_unset() -> None:
    assert env().broker("CELERY_BROKER_URL") == "memory://"
    with pytest.raises(ImproperlyConfigured, match="CELERY_BROKER_URL is 'sqla"):
        env(CELERY_BROKER_URL="sqla+sqlite:///x").broker("CELERY_BROKER_URL")


def test_mail_goes_by_starttls() -> None:
    settings = env(EMAIL_URL="smtp+tls://me%40x:pw@mail.internal").email("EMAIL_URL")

    assert settings["EMAIL_USE_TLS"]
    assert not settings["EMAIL_USE_SSL"]
    assert (settings["EMAIL_HOST"], settings["EMAIL_PORT"], settings["EMAIL_HOST_USER"]) == ("mail.internal", 587, "me@x")


def test_hosts_are_names_and_origins_are_addresses() -> None:
    assert env(ALLOWED_HOSTS="a.example, b.example").hosts("ALLOWED_HOSTS") == ["a.example", "b.example"]
    with pytest.raises(ImproperlyConfigured, match="host names"):
        env(ALLOWED_HOSTS="https://a.example").hosts("ALLOWED_HOSTS")
    with pytest.raises(ImproperlyConfigured, match="begin with http, https"):
        env(CSRF_TRUSTED_ORIGINS="a.example").origins("CSRF_TRUSTED_ORIGINS")


def test_without_a_database_the_running_demos_settings_are_used(tmp_path: Path) -> None:
    (tmp_path / "demo.json").write_text(
        json.dumps({"database_url": "postgres://u@h/db", "stores": "main=memory:", "url": "http://h"})
    )
    (tmp_path / "demo.env.json").write_text(json.dumps({"SECRET_KEY": "s", "BASE_URL": "http://other"}))

    found = with_demo_settings({"DATABASE_URL": "", "BASE_URL": "http://mine"}, tmp_path)

    assert found == {
        "DATABASE_URL": "postgres://u@h/db",
        "ACTION_STORES": "main=memory:",
        "SECRET_KEY": "s",
        "BASE_URL": "http://mine",
    }


def test_a_database_of_ones_own_hides_the_demo(tmp_path: Path) -> None:
    (tmp_path / "demo.json").write_text("{")

    assert with_demo_settings({"DATABASE_URL": "postgres://u@h/db"}, tmp_path) == {"DATABASE_URL": "postgres://u@h/db"}


def test_a_broken_demo_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "demo.json").write_text("[]")

    with pytest.raises(ImproperlyConfigured, match=r"demo\.json holds no JSON object"):
        with_demo_settings({}, tmp_path)


PRODUCTION = {
    "DATABASE_URL": "postgres://u@localhost:1/db",
    "SECRET_KEY": "k" * 50,
    "ALLOWED_HOSTS": "settle.example.com",
    "SECRETS_KEY": KEY,
    "AUDIT_SIGNING_KEY": KEY,
}


def manage(settings: Mapping[str, str], *command: str) -> subprocess.CompletedProcess[str]:
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    return subprocess.run(
        [sys.executable, "manage.py", *command], cwd=ROOT, env=kept | dict(settings), capture_output=True, text=True
    )


@pytest.mark.parametrize("missing", ["SECRET_KEY", "ALLOWED_HOSTS", "SECRETS_KEY", "AUDIT_SIGNING_KEY"])
def test_production_refuses_to_start_without(missing: str) -> None:
    done = manage({name: value for name, value in PRODUCTION.items() if name != missing}, "check")

    assert done.returncode == 1
    assert done.stderr.startswith(f"manage.py: {missing} is ")
    assert done.stderr.count("\n") == 1


def test_production_refuses_the_secret_of_development() -> None:
    done = manage(PRODUCTION | {"SECRET_KEY": "only-for-development-never-outside-of-a-laptop"}, "check")

    assert done.returncode == 1
    assert "the one of development" in done.stderr


def test_development_needs_only_a_database() -> None:
    assert manage({"DATABASE_URL": PRODUCTION["DATABASE_URL"], "DEBUG": "true"}, "check").returncode == 0


SHOW = """
from console import settings as s
import json
print(json.dumps([s.SESSION_COOKIE_NAME, s.CSRF_COOKIE_NAME, s.SESSION_COOKIE_SECURE, s.CSRF_COOKIE_SECURE, s.SECURE_HSTS_SECONDS > 0]))
"""


@pytest.mark.parametrize(
    ("more", "cookies"),
    [
        ({}, ["__Host-sessionid", "__Host-csrftoken", True, True, True]),
        ({"DEMO": "1"}, ["sessionid", "csrftoken", False, False, False]),
        ({"DEBUG": "1"}, ["sessionid", "csrftoken", False, False, False]),
    ],
)
def test_cookies_are_bound_to_the_host_and_secure_in_production_only(more: dict[str, str], cookies: list[object]) -> None:
    shown = subprocess.run(
        [sys.executable, "-c", SHOW], cwd=ROOT, env=PRODUCTION | more, capture_output=True, text=True, check=True
    )

    assert json.loads(shown.stdout) == cookies


def test_production_collects_static_files_into_a_manifest(tmp_path: Path) -> None:
    """The vendored files name nothing that the manifest storage would look for in vain."""
    program = f"""
import django
from django.conf import settings
from django.core.management import call_command
django.setup()
settings.STATIC_ROOT = {str(tmp_path)!r}
call_command("collectstatic", interactive=False, verbosity=0)
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env=PRODUCTION | {"DJANGO_SETTINGS_MODULE": "console.settings"},
        capture_output=True,
        text=True,
    )

    assert done.returncode == 0, done.stderr
    assert "vendor/htmx.min.js" in json.loads((tmp_path / "staticfiles.json").read_text())["paths"]
