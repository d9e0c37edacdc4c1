"""Dovecot, the mail server that most others are measured by, for one test: found or installed as the browser is, run from a folder of ours."""

from __future__ import annotations

import grp
import os
import pwd
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from local import processes

_IMAP = Path("/usr/lib/dovecot/imap")


def find() -> str | None:
    """The path of the binary named by DOVECOT, or of Debian's where its IMAP part is there too; None when there is none."""
    if named := os.environ.get("DOVECOT"):
        return shutil.which(named)
    return shutil.which("dovecot", path=f"{os.environ.get('PATH', '')}:/usr/sbin") if _IMAP.exists() else None


def find_or_install() -> str | None:
    """As `find`; as root on Debian a missing one is installed first. Debian starts no service where its policy forbids it."""
    return find() or (find() if _installed_by_apt() else None)


def _installed_by_apt() -> bool:
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        return False
    print("dovecot is missing: installing Debian's", file=sys.stderr, flush=True)
    # RUNLEVEL=1: a package's own start is left out, should this machine's policy allow it.
    quiet_debian = os.environ | {"DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    for command in (["update", "-qq"], ["install", "-y", "-qq", "--no-install-recommends", "dovecot-imapd"]):
        done = subprocess.run(["apt-get", *command], env=quiet_debian, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            print(f"apt-get {command[0]} failed: {done.stderr.strip()}", file=sys.stderr, flush=True)
            return False
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Dovecot:
    """Where it listens: plain with STARTTLS on `port`, TLS from the start on `tls_port`. `log` holds what its clients said."""

    port: int
    tls_port: int
    user: str
    password: str
    log: Path
    said: Path  # what clients sent and got, one file for each login

    host: str = "127.0.0.1"


@contextmanager
def start(binary: str, *, certificate: Path, key: Path, user: str = "agents", password: str = "geheim") -> Iterator[Dovecot]:  # noqa: S107
    """A server with one user and a folder marked as \\Sent, on 127.0.0.1, while the block lasts."""
    home = processes.temporary_folder("dovecot", mode=0o755)
    server = Dovecot(
        port=processes.free_port(),
        tls_port=processes.free_port(),
        user=user,
        password=password,
        log=home / "log",
        said=home / "said",
    )
    for folder in (home / "mail", server.said):
        folder.mkdir()
        folder.chmod(0o777)
    (home / "users").write_text(f"{user}:{{PLAIN}}{password}\n")
    (home / "conf").write_text(_config(home, server, certificate, key))
    process = processes.spawn([binary, "-F", "-c", home / "conf"], cwd=Path("/"), log=home / "start.log")
    try:
        processes.wait_for_port(server.port, process=process, log=home / "start.log")
        yield server
    finally:
        processes.stop(process)
        shutil.rmtree(home, ignore_errors=True)


def _config(home: Path, server: Dovecot, certificate: Path, key: Path) -> str:
    # As root its parts run as the users that Debian made for them, else all of it as whoever starts it.
    is_root = os.geteuid() == 0
    me = pwd.getpwuid(os.geteuid())
    mail = pwd.getpwnam("nobody") if is_root else me
    own = (me.pw_name, me.pw_name, grp.getgrgid(me.pw_gid).gr_name)
    internal, logins, group = ("dovecot", "dovenull", "dovecot") if is_root else own
    return f"""
protocols = imap
listen = {server.host}
base_dir = {home}/run
log_path = {server.log}
default_internal_user = {internal}
default_internal_group = {group}
default_login_user = {logins}
first_valid_uid = 1
mail_uid = {mail.pw_uid}
mail_gid = {mail.pw_gid}
first_valid_gid = {mail.pw_gid}
mail_location = maildir:{home}/mail
ssl = yes
ssl_cert = <{certificate}
ssl_key = <{key}
disable_plaintext_auth = yes
auth_mechanisms = plain login
namespace inbox {{
  inbox = yes
  mailbox Gesendet {{
    auto = create
    special_use = \\Sent
  }}
}}
passdb {{
  driver = passwd-file
  args = {home}/users
}}
userdb {{
  driver = static
  args = home={home}/mail
}}
protocol imap {{
  rawlog_dir = {server.said}
}}
service imap-login {{
  chroot =
  inet_listener imap {{
    port = {server.port}
  }}
  inet_listener imaps {{
    port = {server.tls_port}
    ssl = yes
  }}
}}
service anvil {{
  chroot =
}}
"""
