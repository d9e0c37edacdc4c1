"""The compose file and the image: what starts, as whom, and what it refuses. No engine is needed: its scripts run here, around fakes."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import playwright
import pytest
import yaml

from actions.store.mongo_connection import parse_address
from actions.store.mongo_setup import User, missing_rights, warnings
from console.env import Environment
from demo.on_mongo import PRIVILEGES

ROOT = Path(__file__).resolve().parents[2]
COMPOSE = (ROOT / "docker-compose.yml").read_text()
NODE = Path(playwright.__file__).parent / "driver/node"
PASSWORDS = {"MONGO_INITDB_ROOT_PASSWORD": "o", "MONGO_CONSOLE_PASSWORD": "c", "MONGO_AGENTS_PASSWORD": "a"}


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(COMPOSE)
    return loaded


@pytest.fixture(scope="module")
def mongo(compose: dict[str, Any]) -> dict[str, Any]:
    service: dict[str, Any] = compose["services"]["mongo"]
    return service


def test_mongodb_is_there_only_for_those_who_ask_and_never_for_other_machines(compose: dict[str, Any]) -> None:
    profiles = {name: service.get("profiles") for name, service in compose["services"].items()}
    assert {name for name, found in profiles.items() if found} == {"mongo", "mongo-prepare"}
    assert profiles["mongo"] == profiles["mongo-prepare"] == ["mongo"]
    ports = [port for service in compose["services"].values() for port in service.get("ports", [])]
    assert all(port.startswith("127.0.0.1:") for port in ports)


# --- its start -------------------------------------------------------------------------------------------------------


def start(mongo: dict[str, Any], folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the entrypoint where `docker-entrypoint.sh` only tells how it was called, and nobody is `mongodb`."""
    bin_folder = folder / "bin"
    bin_folder.mkdir()
    for name, script in {"docker-entrypoint.sh": 'echo "$@"; stat -c %a "$5"', "chown": 'echo "$1"'}.items():
        (bin_folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (bin_folder / name).chmod(0o755)
    line = [part.replace("$$", "$") for part in mongo["entrypoint"]]
    env = {"PATH": f"{bin_folder}:{os.environ['PATH']}", "TMPDIR": str(folder), **environment}
    return subprocess.run(line, env=env, capture_output=True, text=True, timeout=120)


def test_it_starts_as_a_replica_set_with_a_key_of_its_own(mongo: dict[str, Any], tmp_path: Path) -> None:
    started = start(mongo, tmp_path, **PASSWORDS)

    key = tmp_path / "keyfile"
    assert started.returncode == 0, started.stderr
    assert started.stdout.splitlines() == [
        "mongodb:mongodb",
        f"mongod --replSet rs0 --keyFile {key} --bind_ip_all",
        "600",  # MongoDB refuses a key that others can read
    ]
    assert re.fullmatch(r"[A-Za-z0-9+/=]{6,1024}", key.read_text())


@pytest.mark.parametrize("missing", PASSWORDS)
def test_without_a_password_it_does_not_start(mongo: dict[str, Any], tmp_path: Path, missing: str) -> None:
    refused = start(mongo, tmp_path, **{**PASSWORDS, missing: ""})

    assert refused.returncode != 0
    assert "in .env" in refused.stderr
    assert refused.stdout == ""


# --- its healthcheck -------------------------------------------------------------------------------------------------

SHELL = """
const [says, primary] = process.argv.slice(1);
const db = { auth: (user, password) => console.log("auth", user, password), hello: () => ({ isWritablePrimary: primary === "yes" }) };
const rs = {
  status: () => { if (says !== "ok") throw Object.assign(new Error(says), { codeName: says }); },
  initiate: (config) => console.log("initiate", JSON.stringify(config)),
};
const quit = (code) => process.exit(code);
"""
INITIATED = 'initiate {"_id":"rs0","members":[{"_id":0,"host":"mongo:27017"}]}'


@pytest.mark.parametrize(
    ("says", "primary", "done", "is_healthy"),
    [
        ("NotYetInitialized", "no", [INITIATED], False),
        ("ok", "no", [], False),  # initiated, and not elected yet
        ("ok", "yes", [], True),
        ("NoReplicationEnabled", "yes", [], False),  # the image's first start, when it makes the users
    ],
)
def test_the_healthcheck_initiates_once_and_is_content_when_it_takes_writes(
    mongo: dict[str, Any], says: str, primary: str, done: list[str], is_healthy: bool
) -> None:
    *shell, script = mongo["healthcheck"]["test"]
    assert shell == ["CMD", "mongosh", "--quiet", "admin", "--eval"]  # and no password, which everybody there could read

    ran = subprocess.run(
        [NODE, "--eval", SHELL + script, says, primary],
        env={"MONGO_INITDB_ROOT_USERNAME": "owner", "MONGO_INITDB_ROOT_PASSWORD": "o"},
        capture_output=True,
        text=True,
        timeout=120,
    )

    assert ran.stdout.splitlines() == ["auth owner o", *done]
    assert (ran.returncode == 0) is is_healthy


# --- its users -------------------------------------------------------------------------------------------------------


def test_the_consoles_role_is_the_demos_and_by_our_own_check_neither_too_little_nor_too_much(compose: dict[str, Any]) -> None:
    script = compose["configs"]["mongo-users"]["content"]
    held = json.loads(script[script.index("[") : script.index("];") + 1])

    told = {privilege["resource"]["collection"]: set(privilege["actions"]) for privilege in held}
    assert told == {name: set(actions) - {"listCollections"} for name, actions in PRIVILEGES.items()}
    assert {privilege["resource"]["db"] for privilege in held} == {"agents"}
    user = User(name="console", is_asked=True, privileges=tuple(held))
    address = parse_address("main", "mongodb://host/agents")
    assert missing_rights(user, "agents", "rc_recall_lexical_v1_agents") == []
    assert list(warnings(user, address, "rc_recall_lexical_v1_agents", has_index=True)) == []


def test_each_user_is_made_with_its_own_password_and_role(compose: dict[str, Any]) -> None:
    shell = """
    const db = { getSiblingDB: (name) => ({
      createRole: (role) => console.log(name, role.role),
      createUser: (user) => console.log(name, JSON.stringify(user)),
    }) };
    """
    script = shell + compose["configs"]["mongo-users"]["content"]
    ran = subprocess.run([NODE, "--eval", script], env=PASSWORDS, capture_output=True, text=True, timeout=120, check=True)

    assert ran.stdout.splitlines() == [
        "agents console",
        'admin {"user":"console","pwd":"c","roles":[{"role":"console","db":"agents"}]}',
        'admin {"user":"agents","pwd":"a","roles":[{"role":"readWrite","db":"agents"}]}',
    ]


def test_the_documented_stores_are_what_the_console_reads(compose: dict[str, Any]) -> None:
    (documented,) = re.findall(r'^#   ACTION_STORES="(.*)"$', COMPOSE, re.MULTILINE)
    prepared = compose["services"]["mongo-prepare"]["environment"]["ACTION_STORES"]
    for text in (documented, prepared):
        (address,) = Environment({"ACTION_STORES": re.sub(r"\$\{\w+(:-)?\}", "pw", text)}).stores("ACTION_STORES").values()
        parsed = parse_address("main", address)
        assert (parsed.database, parsed.passwords) == ("agents", ("pw",))
        assert "@mongo:27017/" in parsed.url
        assert "replicaSet=rs0" in parsed.url


# --- the image -------------------------------------------------------------------------------------------------------


def test_the_image_holds_every_part_of_the_console_that_there_is() -> None:
    copied = set(re.findall(r"^COPY (\w+) \1$", (ROOT / "Dockerfile").read_text(), re.MULTILINE))
    assert copied == {name for name in ("actions", "agents", "console", "templates") if (ROOT / name).is_dir()}


# --- Compose itself --------------------------------------------------------------------------------------------------

FILLED = {
    **dict.fromkeys(
        ("POSTGRES_PASSWORD", "BROKER_PASSWORD", "SECRET_KEY", "SECRETS_KEY", "AUDIT_SIGNING_KEY", "ALLOWED_HOSTS"), "x"
    ),
    **dict.fromkeys(("MONGO_OWNER_PASSWORD", "MONGO_CONSOLE_PASSWORD", "MONGO_AGENTS_PASSWORD"), "x"),
    "BASE_URL": "https://settle.example",
    "ACTION_STORES": "main=postgres://console@db/agents",
}


def read_by_compose(tmp_path: Path, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """What the real binary says to the file. It needs no engine for that; the package's own wrapper hides its exit code."""
    package = importlib.util.find_spec("compose")
    assert package is not None
    assert package.origin is not None
    line = [Path(package.origin).parent / "docker-compose", "--project-directory", tmp_path, "-f", ROOT / "docker-compose.yml"]
    return subprocess.run([*line, *options], env=environment, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("profile", [(), ("--profile", "mongo")], ids=["usual", "mongo"])
def test_compose_itself_reads_the_file_and_starts_two_workers_and_one_beat(tmp_path: Path, profile: tuple[str, ...]) -> None:
    read = read_by_compose(tmp_path, *profile, "config", "--format", "json", **FILLED)

    assert read.returncode == 0, read.stderr
    services = json.loads(read.stdout)["services"]
    assert {"web", "worker", "beat", "postgres", "rabbitmq", "migrate"} <= set(services)
    assert ("mongo" in services) is bool(profile)
    assert [services[name]["deploy"]["replicas"] for name in ("worker", "beat")] == [2, 1]


@pytest.mark.parametrize("missing", ["SECRET_KEY", "POSTGRES_PASSWORD", "AUDIT_SIGNING_KEY"])
def test_compose_refuses_to_start_without_a_secret_and_names_it(tmp_path: Path, missing: str) -> None:
    read = read_by_compose(tmp_path, "config", "-q", **{name: value for name, value in FILLED.items() if name != missing})

    assert read.returncode != 0
    assert missing in read.stderr


def test_every_setting_in_the_environment_file_reaches_the_console(compose: dict[str, Any]) -> None:
    read = set(re.findall(r'\benv\.\w+\(\s*"([A-Z][A-Z0-9_]+)"', (ROOT / "console" / "settings.py").read_text()))
    single = {"OIDC_ISSUER", "OIDC_CLIENT_ID", "OIDC_CLIENT_SECRET", "OIDC_ALLOWED_DOMAINS", "OIDC_NAME"}  # env.single_sign_on
    kept = {"DEBUG", "DEMO", "OWNER_URL"}  # never in production; for one command alone
    assert len(read) > 25
    services = compose["services"]

    for name in ("web", "worker", "beat", "migrate"):
        handed = set(services[name]["environment"])
        only_workers = set() if name == "worker" else {"RUN_STORE_URL"}
        assert (read | single) - kept - only_workers - handed == set(), name
        assert not handed & (kept | only_workers)
