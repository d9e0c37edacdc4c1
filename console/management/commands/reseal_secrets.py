"""`reseal_secrets`: encrypt every stored secret with the newest key of SECRETS_KEY, so that an older one can be taken out."""

from __future__ import annotations

from typing import Any

from console.management.base import Command as Base
from console.management.base import refuse
from console.services.sealing import reseal_all


class Command(Base):
    help = (
        "Encrypt the secrets of resolvers and hooks anew with the first key of SECRETS_KEY. To rotate: put the new key in front, restart every "
        "process, run this, take the old key out, restart again. Exit code 1 where a secret opens with none of the keys: it has to be set again."
    )

    def run(self, **options: Any) -> None:
        count, lost = reseal_all()
        self.stdout.write(f"{count} secrets are encrypted with the newest key")
        if lost:
            refuse(f"no key of SECRETS_KEY opens {', '.join(lost)}; set them again")
