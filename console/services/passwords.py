"""A link by which somebody who forgot their password chooses a new one."""

from __future__ import annotations

from django.conf import settings
from django.contrib.auth.models import User
from django.core.mail import EmailMessage
from django.db.models import Q

from console.services.people import password_path


def mail_link(said: str) -> int:
    """Mail a link to every active account of that name or mail address that has an address and a password; how many. Nobody is told which."""
    said = said.strip()
    if not said or "\x00" in said:
        return 0
    found = User.objects.filter(Q(username__iexact=said) | Q(email__iexact=said), is_active=True).exclude(email="")
    users = [user for user in found.order_by("pk")[:5] if user.has_usable_password()]
    for user in users:
        text = (
            f"Somebody asked for a new password of the account {user.get_username()}. Whoever follows this link chooses it:\n\n"
            f"{settings.BASE_URL}{password_path(user)}\n\n"
            "It is good once, for 24 hours. If that was not you, do nothing: the old password stays."
        )
        EmailMessage("Settle: a new password", text, to=[user.email], headers={"Auto-Submitted": "auto-generated"}).send()
    return len(users)
