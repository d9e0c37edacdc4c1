"""People: their roles, whether they may come in, their second factor, where they are signed in. Every change enters the console's history
with who made it, in one transaction.

What a person may do is remembered in no session: a change holds from their next request on. Their sessions end all the same, so that the
next thing they do begins with who they are; what they typed is kept in their tab.
"""

from __future__ import annotations

import re
import zoneinfo
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from functools import lru_cache
from typing import Any

from allauth.mfa.models import Authenticator
from django.conf import settings
from django.contrib.auth.models import AnonymousUser, User
from django.contrib.auth.tokens import default_token_generator
from django.contrib.sessions.models import Session
from django.core.exceptions import PermissionDenied, ValidationError
from django.core.validators import validate_email
from django.db import IntegrityError, transaction
from django.db.models import Q
from django.utils import timezone
from django.utils.encoding import force_bytes
from django.utils.http import urlsafe_base64_encode

from actions.errors import ActionsError
from console.access import Right, forget, has_any_role, may, may_somewhere
from console.models import Grant, Light, Preferences, Role, SignIn
from console.services import journal
from console.services.changes import PEOPLE, bump
from console.stores import list_stores

MOST_SHOWN = 500
# What browsers say of themselves: each also says the names of those it wants to be taken for, so the order matters.
_BROWSERS = (("Edg/", "Edge"), ("OPR/", "Opera"), ("Firefox/", "Firefox"), ("Chrome/", "Chrome"), ("Version/", "Safari"))
_SYSTEMS = (
    ("Android", "Android"),
    ("iPhone", "an iPhone"),
    ("iPad", "an iPad"),
    ("Windows", "Windows"),
    ("Mac OS X", "a Mac"),
    ("Linux", "Linux"),
)
_SECOND_FACTORS = (Authenticator.Type.TOTP, Authenticator.Type.WEBAUTHN)


class InvalidPerson(ActionsError):
    """What was asked for breaks a rule; `.field` names where. Nothing was stored."""

    def __init__(self, field: str, problem: str) -> None:
        self.field = field
        super().__init__(problem)


class LastAdmin(ActionsError):
    """Nobody would be left who may edit people. Nothing was changed."""

    def __init__(self, name: str) -> None:
        super().__init__(f"{name} is the last admin of everything; make somebody else admin first")


@dataclass(frozen=True, slots=True, kw_only=True)
class Person:
    """One line of the list."""

    user: User
    grants: tuple[Grant, ...]
    factors: tuple[str, ...]  # words for what they have beside a password


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One session that still runs."""

    sign_in: SignIn
    last_used_at: datetime | None  # to the minute; None: nothing since it began
    is_this: bool

    @property
    def words(self) -> str:
        """Which browser it says it is, on which system: `Firefox 145 on Linux`."""
        said = self.sign_in.browser
        name = next((f"{word} {found[1]}" for mark, word in _BROWSERS if (found := re.search(mark + r"([0-9]{1,4})", said))), "")
        system = next((word for mark, word in _SYSTEMS if mark in said), "")
        return f"{name or 'A browser'}{f' on {system}' if system else ''}"


# --- who there is ----------------------------------------------------------------------------------------------------


def list_people(*, by: User) -> list[Person]:
    """Everybody, by name, at most MOST_SHOWN: three statements. Raises PermissionDenied."""
    _require_admin(by)
    users = User.objects.order_by("-is_active", "username")[:MOST_SHOWN]
    grants: dict[int, list[Grant]] = {}
    for grant in Grant.objects.order_by("role", "store", "tool"):
        grants.setdefault(grant.user_id, []).append(grant)
    factors: dict[int, list[str]] = {}
    for user_id, kind in Authenticator.objects.filter(type__in=_SECOND_FACTORS).values_list("user_id", "type"):
        factors.setdefault(user_id, []).append(kind)
    return [_person(user, grants.get(user.pk, []), factors.get(user.pk, [])) for user in users]


def get_person(pk: int, *, by: User) -> Person | None:
    """One of them; None where there is nobody of that number. Raises PermissionDenied."""
    _require_admin(by)
    user = User.objects.filter(pk=pk).first()
    if user is None:
        return None
    kinds = Authenticator.objects.filter(user=user, type__in=_SECOND_FACTORS).values_list("type", flat=True)
    return _person(user, user.grants.order_by("role", "store", "tool"), kinds)


def _person(user: User, grants: Iterable[Grant], kinds: Iterable[str]) -> Person:
    words = {Authenticator.Type.TOTP: "authenticator app", Authenticator.Type.WEBAUTHN: "passkey"}
    return Person(user=user, grants=tuple(grants), factors=tuple(sorted({words[Authenticator.Type(kind)] for kind in kinds})))


def add_person(name: str, email: str, *, by: User) -> User:
    """A new account without a password and without a role; `password_path` says where its person chooses one.

    Raises:
        PermissionDenied, InvalidPerson: nothing was stored.
    """
    _require_admin(by)
    user = User(username=User.normalize_username(name.strip()), email=_email(email))
    user.set_unusable_password()
    save_new(user, actor=journal.admin(by))
    return user


def save_new(user: User, *, actor: str) -> None:
    """Store an account that nobody has yet. Raises InvalidPerson: nothing was stored."""
    try:
        user.full_clean(exclude=["password"], validate_unique=False)
    except ValidationError as exc:
        raise InvalidPerson("username", "1 to 150 letters, digits and @ . + - _") from exc
    if like := User.objects.filter(username__iexact=user.username).first():
        raise InvalidPerson("username", f"there is a user {like.get_username()!r} already")
    try:
        with transaction.atomic():
            user.save()
            added(user, actor=actor)
    except IntegrityError as exc:
        raise InvalidPerson("username", f"there is a user {user.username!r} already") from exc


def added(user: User, *, actor: str) -> None:
    """Enter that there is a new account. In the transaction that makes it, last."""
    said = {"mail address": user.email, "may come in": user.is_active, "every role": user.is_superuser}
    detail = {
        "about": user.get_username(),
        "changed": journal.changes({}, {name: value for name, value in said.items() if value}),
    }
    journal.record("person_added", actor=actor, detail=detail)


def set_email(user: User, email: str, *, by: User) -> None:
    """Where mail to this person goes, a link for a new password too. Raises PermissionDenied, InvalidPerson: nothing was stored."""
    _require_over(user, by)
    new = _email(email)
    with transaction.atomic():
        old = User.objects.select_for_update(no_key=True).values_list("email", flat=True).get(pk=user.pk)
        if old != new:
            User.objects.filter(pk=user.pk).update(email=new)
            _enter("person_changed", user, {"mail address": [old, new]}, journal.admin(by))


def make_password_link(user: User, *, by: User) -> str:
    """The whole address at which this person chooses a password; that it was made is an entry. Raises PermissionDenied."""
    _require_over(user, by)
    _enter("password_link", user, {"link for a new sign-in": [None, "made"]}, journal.admin(by))
    return first_password_link(user)


def first_password_link(user: User) -> str:
    """The same of somebody who was just added: that is one gesture."""
    return f"{settings.BASE_URL}{password_path(user)}"


def end_sessions_of(user: User, but: str | None, *, by: User) -> int:
    """End every session of somebody, but for one of one's own. How many there were. Raises PermissionDenied."""
    _require_over(user, by)
    return _end_others(user, but if user.pk == by.pk else None, journal.admin(by))


def password_path(user: User) -> str:
    """The path at which this person, or whoever holds it, chooses a password; good once, and for PASSWORD_RESET_TIMEOUT."""
    return f"/password/{urlsafe_base64_encode(force_bytes(user.pk))}/{default_token_generator.make_token(user)}/"


def _email(email: str) -> str:
    email = email.strip()
    if email:
        try:
            validate_email(email)
        except ValidationError as exc:
            raise InvalidPerson("email", "that is no mail address") from exc
    if len(email) > 254:
        raise InvalidPerson("email", "at most 254 characters")
    return email


# --- roles -----------------------------------------------------------------------------------------------------------


def give_role(user: User, role: str, *, store: str = "", tool: str = "", by: User | None) -> bool:
    """Give a role; False where they had it. `by` None is a command's, run by whoever holds the machine. Their sessions end.

    Raises:
        PermissionDenied, InvalidPerson: nothing was changed.
    """
    if by is not None:
        _require_admin(by)
    _check_role(role, store, tool)
    with transaction.atomic():
        before = _roles(user)
        _, is_new = Grant.objects.get_or_create(user=user, role=role, store=store, tool=tool)
        if is_new:
            _changed("role_changed", user, by, {"roles": [before, _roles(user)]})
    return is_new


def take_role(user: User, role: str, *, store: str = "", tool: str = "", by: User | None) -> bool:
    """Take exactly that role away; False where they did not have it. Their sessions end.

    Raises:
        PermissionDenied: nothing was changed.
        LastAdmin: nobody else may edit people. Nothing was changed, however many take one away at once. A command is not asked.
    """
    if by is not None:
        _require_admin(by)
    with transaction.atomic():
        if by is not None and role == Role.ADMIN and not store and not tool:
            _keep_an_admin(user, is_grant=True)
        before = _roles(user)
        gone, _ = Grant.objects.filter(user=user, role=role, store=store, tool=tool).delete()
        if gone:
            _changed("role_changed", user, by, {"roles": [before, _roles(user)]})
    return bool(gone)


def set_active(user: User, is_active: bool, *, by: User) -> None:
    """Let somebody in again, or no longer: then their sessions end and their tokens are refused.

    Raises:
        PermissionDenied, LastAdmin: nothing was changed.
        InvalidPerson: nobody deactivates themselves. Nothing was changed.
    """
    _require_over(user, by)
    if user.pk == by.pk and not is_active:
        raise InvalidPerson("active", "you cannot deactivate yourself; another admin can")
    with transaction.atomic():
        if not is_active:
            _keep_an_admin(user, is_grant=False)
        if User.objects.filter(pk=user.pk, is_active=not is_active).update(is_active=is_active):
            _changed("person_changed", user, by, {"may come in": [not is_active, is_active]})


def reset_second_factor(user: User, *, by: User) -> bool:
    """Take every second factor and recovery code away, for somebody who lost theirs; False where there was none. Their sessions end.

    Raises PermissionDenied: nothing was changed.
    """
    _require_over(user, by)
    with transaction.atomic():
        before = factors_of(user)
        gone, _ = Authenticator.objects.filter(user=user).delete()
        if gone:
            _changed("second_factor_changed", user, by, {"second factor": [before, factors_of(user)]})
    return bool(gone)


def factors_of(user: User) -> list[str]:
    """What proves who they are beside a password, in words: what each is, what it is called and since when."""
    rows = Authenticator.objects.filter(user=user).order_by("pk")
    return [_factor(row) for row in rows]


def _factor(row: Authenticator) -> str:
    kinds = {Authenticator.Type.TOTP: "authenticator app", Authenticator.Type.RECOVERY_CODES: "recovery codes"}
    kind = kinds.get(Authenticator.Type(row.type)) or f"passkey {row.data.get('name', '')}".strip()
    return f"{kind}, since {row.created_at:%Y-%m-%d %H:%M:%S.%f} UTC"


def has_second_factor(user: User | AnonymousUser) -> bool:
    return user.is_authenticated and Authenticator.objects.filter(user_id=user.pk, type__in=_SECOND_FACTORS).exists()


def needs_second_factor(user: User | AnonymousUser) -> bool:
    """Whether this person may change anything, must have a second factor for it, and has none. No statement unless it is required."""
    if not settings.REQUIRE_SECOND_FACTOR or not isinstance(user, User) or not has_any_role(user):
        return False
    may_change = any(
        may_somewhere(user, right) for right in (Right.SETTLE, Right.APPROVE, Right.EVICT, Right.ADMIN, Right.REVEAL)
    )
    return may_change and not has_second_factor(user)


def _keep_an_admin(leaver: User, *, is_grant: bool) -> None:
    """Refuse to lose the last one, by a grant or by an account. Every admin's rows are locked, in one order: of two who go at once the
    second sees the first gone."""
    granted = Grant.objects.filter(role=Role.ADMIN, store="", tool="")
    either = Q(is_superuser=True) | Q(pk__in=granted.values("user_id"))
    admins = list(User.objects.select_for_update().filter(either, is_active=True).order_by("pk"))
    # Asked anew: whoever was waited for may have taken a grant away.
    holders = set(granted.values_list("user_id", flat=True))
    left = [one for one in admins if one.is_superuser or (one.pk in holders and not (is_grant and one.pk == leaver.pk))]
    if not [one for one in left if is_grant or one.pk != leaver.pk]:
        raise LastAdmin(leaver.get_username())


def _check_role(role: str, store: str, tool: str) -> None:
    if role not in Role.values:
        raise InvalidPerson("role", f"choose one of {', '.join(Role.values)}")
    if store and store not in [one.name for one in list_stores()]:
        raise InvalidPerson("store", f"no store is called {store[:63]!r}")
    if len(tool) > 255 or "\x00" in tool:
        raise InvalidPerson("tool", "that is no tool's name")


def _changed(kind: str, user: User, by: User | None, changed: dict[str, list[Any]]) -> None:
    """End their sessions, end the event streams, enter it. Inside the caller's transaction, last."""
    forget(user)
    # Who changes their own roles stays: their session gets a new key by their view.
    if by is None or by.pk != user.pk:
        end_sessions(user)
    bump(PEOPLE)
    _enter(kind, user, changed, journal.admin(by))


def _enter(kind: str, user: User, changed: dict[str, list[Any]], actor: str) -> None:
    journal.record(kind, actor=actor, detail={"about": user.get_username(), "changed": changed})


def _roles(user: User) -> list[str]:
    """Their roles in words, after the row that stands for the person is locked: of two changes at once the second sees the first."""
    User.objects.select_for_update(no_key=True).filter(pk=user.pk).first()
    return [
        f"{one.role}{_where(one.store, one.tool)}" for one in Grant.objects.filter(user=user).order_by("role", "store", "tool")
    ]


def _where(store: str, tool: str) -> str:
    return (f" in store {store}" if store else "") + (f" for tool {tool}" if tool else "")


# --- sessions --------------------------------------------------------------------------------------------------------


def list_devices(user: User, this: str | None) -> list[Device]:
    """Where this person is signed in, this browser first, then the newest. Rows whose session has ended are forgotten."""
    rows = list(SignIn.objects.filter(user=user).order_by("-at", "-pk"))
    running = Session.objects.filter(session_key__in=[row.session_key for row in rows], expire_date__gt=timezone.now())
    alive = {session.session_key: session for session in running}
    SignIn.objects.filter(pk__in=[row.pk for row in rows if row.session_key not in alive]).delete()
    devices = [_device(row, alive[row.session_key], this) for row in rows if row.session_key in alive]
    return sorted((one for one in devices if one is not None), key=lambda one: not one.is_this)


def end_session(user: User, pk: int) -> bool:
    """End one of this person's own sessions; False where it is not theirs or has ended. Its event streams end too."""
    row = SignIn.objects.filter(pk=pk, user=user).first()
    if row is None:
        return False
    with transaction.atomic():
        before = _count_sessions(user)
        gone = end_sessions(user, only=row.session_key)
        bump(PEOPLE)
        if gone:
            _enter("sessions_ended", user, {"sessions": [before, before - gone]}, journal.person(user))
    return True


def end_other_sessions(user: User, this: str | None) -> int:
    """End every session of this person but this one. How many there were."""
    return _end_others(user, this, journal.person(user))


def _end_others(user: User, this: str | None, actor: str) -> int:
    with transaction.atomic():
        before = _count_sessions(user)
        gone = drop_other_sessions(user, this)
        if gone:
            _enter("sessions_ended", user, {"sessions": [before, before - gone]}, actor)
    return gone


def drop_other_sessions(user: User, this: str | None) -> int:
    """The same as a part of something that is entered itself: a new password, other roles. How many there were."""
    count = end_sessions(user, but=this)
    bump(PEOPLE)
    return count


def password_changed(user: User, *, had_one: bool, actor: str) -> None:
    """Enter it. In the transaction that changes it, last."""
    before, after = ("a password", "another password") if had_one else ("no password", "a password")
    _enter("password_changed", user, {"comes in with": [before, after]}, actor)


def second_factor_changed(user: User, before: list[str]) -> None:
    """Enter what they changed of it themselves; nothing where nothing differs. In the transaction that changes it, last."""
    if (after := factors_of(user)) != before:
        _enter("second_factor_changed", user, {"second factor": [before, after]}, journal.person(user))


def _count_sessions(user: User) -> int:
    return SignIn.objects.filter(user=user).count()


def end_sessions(user: User, *, but: str | None = None, only: str | None = None) -> int:
    rows = SignIn.objects.filter(user=user)
    rows = rows.filter(session_key=only) if only else rows.exclude(session_key=but) if but else rows
    keys = list(rows.values_list("session_key", flat=True))
    Session.objects.filter(session_key__in=keys).delete()
    SignIn.objects.filter(session_key__in=keys).delete()
    return len(keys)


def _device(row: SignIn, session: Session, this: str | None) -> Device | None:
    data: dict[str, Any] = session.get_decoded()
    if str(data.get("_auth_user_id", "")) != str(row.user_id):
        return None
    seen = data.get("seen_at")
    last = datetime.fromtimestamp(seen, UTC) if isinstance(seen, int) else None
    return Device(sign_in=row, last_used_at=last, is_this=row.session_key == this)


# --- preferences -----------------------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def time_zones() -> tuple[str, ...]:
    """Every name that a person may choose, UTC first."""
    names = [name for name in zoneinfo.available_timezones() if "/" in name]
    return ("UTC", *sorted(name for name in names if not name.startswith(("Etc/", "posix/", "right/", "SystemV/"))))


def save_preferences(user: User, **values: Any) -> None:
    """Change what is named. Raises InvalidPerson: nothing was stored."""
    if values.get("time_zone", "UTC") not in time_zones():
        raise InvalidPerson("time_zone", "choose a time zone from the list")
    if values.get("theme", "") not in Light.values:
        raise InvalidPerson("theme", "choose light, dark or as the system")
    row, _ = Preferences.objects.update_or_create(user=user, defaults=values)
    user.preferences = row


def preferences_of(user: User | AnonymousUser) -> Preferences:
    """What they chose; the defaults for strangers and for who chose nothing. No statement for the person of a request."""
    if not user.is_authenticated:
        return Preferences()
    try:
        found: Preferences = user.preferences
    except Preferences.DoesNotExist:
        return Preferences(user_id=user.pk)
    return found


def zone_of(user: User | AnonymousUser) -> tzinfo:
    """The time zone that they chose; UTC for strangers, and where it is none any more."""
    try:
        return zoneinfo.ZoneInfo(preferences_of(user).time_zone)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError):
        return UTC


def _require_over(user: User, by: User) -> None:
    """Whoever could take an account over has to be no less than it: only a superuser touches a superuser's."""
    _require_admin(by)
    if user.is_superuser and not by.is_superuser:
        raise PermissionDenied("only a superuser changes a superuser's account")


def _require_admin(user: User) -> None:
    if not may(user, Right.ADMIN):
        raise PermissionDenied("you need the role admin, for every store and tool")
