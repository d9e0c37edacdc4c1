"""What is due by itself, and when: names of tasks only, so that whoever keeps the time needs nothing of what they do.

Nothing here is kept where beat runs: what must not be forgotten for a day, whatever restarts, is due by what the database says.
"""

from __future__ import annotations

from typing import Any

# A sweep that no worker took in time is worth nothing any more: the next one sees the same.
SCHEDULE: dict[str, dict[str, Any]] = {
    "sweep": {"task": "console.tasks.sweep", "schedule": 2.0, "options": {"expires": 10}},
    "ask": {"task": "console.tasks.sweep_inquiries", "schedule": 2.0, "options": {"expires": 10}},
    "runs": {"task": "console.tasks.sweep_runs", "schedule": 2.0, "options": {"expires": 10}},
    "ends": {"task": "console.tasks.sweep_ends", "schedule": 30.0, "options": {"expires": 25}},
    "notify": {"task": "console.tasks.sweep_notices", "schedule": 5.0, "options": {"expires": 10}},
    # Hourly and daily, by the database.
    "checkpoints": {"task": "console.tasks.sign_checkpoints", "schedule": 300.0, "options": {"expires": 240}},
    "verify": {"task": "console.tasks.verify_all", "schedule": 600.0, "options": {"expires": 480}},
    "recheck": {"task": "console.tasks.recheck_failed", "schedule": 300.0, "options": {"expires": 240}},
}
