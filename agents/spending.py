"""What the model costs while a step is made: heard with each of its messages, and noted at once beside the checkpoint that the step began from.

So it is known of a step that fails, of a model that a tool asks by itself, and of a worker that is killed: whoever follows reads the notes.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AIMessage

log = logging.getLogger(__name__)

MOST = Decimal(10) ** 9
"""What one message may cost; more is no cost but a mistake of whoever reckons it."""


def cost_of(cost: Callable[[Any], Decimal], message: Any) -> Decimal:
    """What a message cost. Raises ValueError where that is no amount, and whatever `cost` raises."""
    found = Decimal(cost(message))
    if not (found.is_finite() and 0 <= found <= MOST):
        raise ValueError(f"a message cannot cost {found}")
    return found


class Meter(BaseCallbackHandler):
    """Hears what every message of a model costs in one attempt at a step, by the run type's own `cost`. Safe in several threads.

    `attempt` names the attempt in the notes. A model that is no LangChain model is not heard; what it adds to the state is counted there.
    """

    def __init__(self, cost: Callable[[Any], Decimal] | None, *, attempt: str = "") -> None:
        self.attempt = attempt
        self.spent = Decimal(0)
        self.note: Callable[[Decimal], None] | None = None
        self._cost = cost
        self._lock = threading.Lock()

    def on_chat_model_start(self, *_: Any, **__: Any) -> None:
        """Costs nothing yet."""

    def on_llm_end(self, response: Any, **_: Any) -> None:
        if self._cost is None:
            return
        try:
            said = [getattr(one, "message", None) for generations in response.generations for one in generations]
            cost = sum((cost_of(self._cost, message) for message in said if isinstance(message, AIMessage)), Decimal(0))
            if not cost:
                return
            with self._lock:
                self.spent += cost
                if self.note is not None:
                    self.note(cost)
        except Exception as exc:  # the type's own function, or a note that cannot be made: neither undoes what the model said
            log.warning("what a message of the model cost is not noted: %s", type(exc).__name__)
