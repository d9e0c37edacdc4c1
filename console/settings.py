"""Every setting of the console. The only module that reads the environment; what values mean stands in the README."""

from __future__ import annotations

import logging
import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import structlog
from csp.constants import NONE, SELF
from django.core.exceptions import ImproperlyConfigured
from kombu import Exchange, Queue

from console.env import Environment, with_demo_settings
from console.logs import tame

BASE_DIR = Path(__file__).resolve().parent.parent
env = Environment(with_demo_settings(os.environ, BASE_DIR / ".data"))

# --- What kind of process this is -------------------------------------------------------------------------------------

DEBUG = env.boolean("DEBUG", False)
# The demo and the tests: everything as in production, but over plain http and without a collectstatic.
DEMO = env.boolean("DEMO", False)
PRODUCTION = not (DEBUG or DEMO)

_DEVELOPMENT_SECRET = "only-for-development-never-outside-of-a-laptop"  # noqa: S105
_DEVELOPMENT_KEY = "b25seS1mb3ItZGV2ZWxvcG1lbnQtbm8tc2VjcmV0ISE="

SECRET_KEY = env.text("SECRET_KEY", _DEVELOPMENT_SECRET)
ALLOWED_HOSTS = env.hosts("ALLOWED_HOSTS") or (["localhost", "127.0.0.1", "[::1]"] if DEBUG else [])
CSRF_TRUSTED_ORIGINS = env.origins("CSRF_TRUSTED_ORIGINS")
BASE_URL = env.base_url("BASE_URL", "http://localhost:8000")  # as people reach it; stands in mails and webhooks
# Newest first. To rotate: put a new key in front, restart, `reseal_secrets`, take the old one out.
SECRETS_KEYS = env.keys("SECRETS_KEY") or ((_DEVELOPMENT_KEY,) if DEBUG else ())
AUDIT_SIGNING_KEYS = env.keys("AUDIT_SIGNING_KEY") or ((_DEVELOPMENT_KEY,) if DEBUG else ())
# Public halves of signing keys that were taken out: what they signed goes on counting.
AUDIT_PUBLIC_KEYS = env.public_keys("AUDIT_PUBLIC_KEYS")
# Where checkpoints of the history are sent, outside of the databases.
AUDIT_ANCHORS = env.anchors("AUDIT_ANCHORS")
# The address of a history's database as its owner; read by retain_audit alone, and set for that one command only.
OWNER_URL = env.text("OWNER_URL", "")

if not DEBUG:
    if len(SECRET_KEY) < 32 or SECRET_KEY == _DEVELOPMENT_SECRET:
        raise ImproperlyConfigured(
            "SECRET_KEY is missing, shorter than 32 characters or the one of development; set a random one"
        )
    if not ALLOWED_HOSTS:
        raise ImproperlyConfigured("ALLOWED_HOSTS is empty; set the host names under which people reach the console")
    if not SECRETS_KEYS:
        raise ImproperlyConfigured("SECRETS_KEY is not set; it encrypts resolvers' secrets: 32 bytes, `openssl rand -base64 32`")
    if not AUDIT_SIGNING_KEYS:
        raise ImproperlyConfigured("AUDIT_SIGNING_KEY is not set; it signs the history: 32 bytes, `openssl rand -base64 32`")

# --- Databases, stores, broker, mail ----------------------------------------------------------------------------------

_database = env.database("DATABASE_URL")
DATABASES: dict[str, dict[str, Any]] = {
    "default": {
        **_database,
        "ENGINE": "console.database",
        "OPTIONS": {**_database["OPTIONS"], "pool": {"max_size": 8, "timeout": 10}},
        "CONN_MAX_AGE": 0,  # connections are kept by the engine, not by threads
    }
}
ACTION_STORES: dict[str, str] = env.stores("ACTION_STORES")  # name -> address, in the order of the setting
CELERY_BROKER_URL = env.broker("CELERY_BROKER_URL")
globals().update(env.email("EMAIL_URL"))
DEFAULT_FROM_EMAIL = env.text("DEFAULT_FROM_EMAIL", "settle@localhost")

# --- Django -----------------------------------------------------------------------------------------------------------

INSTALLED_APPS = [
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "axes",
    "allauth",
    "allauth.account",
    "allauth.mfa",
    "allauth.socialaccount",
    "allauth.socialaccount.providers.openid_connect",
    "template_partials",
    "django_htmx",
    "console",
]
MIDDLEWARE = [
    "console.request_lines.RequestLines",
    "console.middleware.Deadlines",
    "django.middleware.security.SecurityMiddleware",
    "console.static_files.StaticFilesMiddleware",
    "console.transfer.Compressed",
    "console.transfer.Unchanged",
    "csp.middleware.CSPMiddleware",
    "console.middleware.Sessions",
    "console.middleware.IdleTimeout",
    "console.middleware.KnownHosts",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "django_htmx.middleware.HtmxMiddleware",
    "allauth.account.middleware.AccountMiddleware",
    "console.middleware.Denials",
    "console.middleware.KnownMethods",
    "console.middleware.SameOrigin",
    "console.middleware.LineFeeds",
    "console.middleware.DrawnProblems",
    "axes.middleware.AxesMiddleware",
]
ROOT_URLCONF = "console.urls"
ASGI_APPLICATION = "console.asgi.application"
WSGI_APPLICATION = "console.wsgi.application"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
                "console.context.console",
            ],
        },
    }
]
LANGUAGE_CODE = "en"
USE_I18N = False
TIME_ZONE = "UTC"
USE_TZ = True
DATA_UPLOAD_MAX_MEMORY_SIZE = 2_621_440  # 2.5 MB: whole arguments may be edited, nothing larger is meant

STATIC_URL = "static/"
# Only production collects; whitenoise serves what was not collected from beside the code, later and larger.
STATIC_ROOT = BASE_DIR / "staticfiles" if PRODUCTION else None
WHITENOISE_USE_FINDERS = True
WHITENOISE_AUTOREFRESH = DEBUG
WHITENOISE_ALLOW_ALL_ORIGINS = False  # no CORS, not even for static files
_STATIC_STORAGE = "console.static_files.CollectedFiles"
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {"BACKEND": _STATIC_STORAGE if PRODUCTION else "django.contrib.staticfiles.storage.StaticFilesStorage"},
}

# --- Accounts and sessions --------------------------------------------------------------------------------------------

AUTHENTICATION_BACKENDS = ["axes.backends.AxesStandaloneBackend", "console.backends.People"]
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.UserAttributeSimilarityValidator"},
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator", "OPTIONS": {"min_length": 12}},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
    {"NAME": "django.contrib.auth.password_validation.NumericPasswordValidator"},
]
LOGIN_URL = "login"
LOGIN_REDIRECT_URL = "queue"
LOGOUT_REDIRECT_URL = "login"
AXES_FAILURE_LIMIT = 5
AXES_COOLOFF_TIME = timedelta(minutes=15)
# One person mistyping from an office does not lock out the office, nor a stranger elsewhere that person.
AXES_LOCKOUT_PARAMETERS = [["username", "ip_address"]]
AXES_RESET_ON_SUCCESS = True
AXES_HTTP_RESPONSE_CODE = 429
AXES_ENABLE_ADMIN = False
AXES_VERBOSE = False
AXES_LOCKOUT_CALLABLE = "console.views.account.locked_out"

# allauth keeps second factors, passkeys and single sign-on; the page for name and password is ours. Nobody signs up by themselves.
ACCOUNT_ADAPTER = "console.accounts.AccountAdapter"
ACCOUNT_LOGIN_METHODS = {"username"}
ACCOUNT_SIGNUP_FIELDS = ["username*", "email", "password1*"]
ACCOUNT_EMAIL_VERIFICATION = "none"  # addresses are set by admins, or verified by the provider of single sign-on
ACCOUNT_PREVENT_ENUMERATION = False  # a new person of single sign-on is told when their address has an account already
ACCOUNT_REAUTHENTICATION_TIMEOUT = 300
# Wrong codes and passkeys of one person: as many as wrong passwords, counted where every process sees it.
ACCOUNT_RATE_LIMITS = {"login_failed": "30/m/ip,5/15m/key", "reauthenticate": "10/5m/user"}
MFA_ADAPTER = "console.accounts.SecondFactorAdapter"
MFA_FORMS = {"activate_totp": "console.accounts.AppForm"}
MFA_SUPPORTED_TYPES = ["totp", "webauthn", "recovery_codes"]
MFA_TOTP_ISSUER = "Settle"
MFA_ALLOW_UNVERIFIED_EMAIL = True
MFA_PASSKEY_LOGIN_ENABLED = True
MFA_RECOVERY_CODES_SHOW_ONCE = True
MFA_WEBAUTHN_ALLOW_INSECURE_ORIGIN = not PRODUCTION  # a laptop has no https
REQUIRE_SECOND_FACTOR = env.boolean("REQUIRE_SECOND_FACTOR", False)  # of whoever may change anything
OIDC = env.single_sign_on(production=PRODUCTION)  # None: nobody comes in that way
SOCIALACCOUNT_ADAPTER = "console.accounts.SingleSignOnAdapter"
SOCIALACCOUNT_EMAIL_AUTHENTICATION = False  # an address proves nothing about an account that is here already
SOCIALACCOUNT_STORE_TOKENS = False
SOCIALACCOUNT_REAUTHENTICATION_REQUIRED = True  # an open browser links nobody's account
SOCIALACCOUNT_REQUESTS_TIMEOUT = 5
SOCIALACCOUNT_PROVIDERS: dict[str, Any] = {
    "openid_connect": {"OAUTH_PKCE_ENABLED": True, "APPS": [OIDC.app()] if OIDC else []},
}
# Counts of wrong codes and codes already used: every process has to see the same.
CACHES = {
    "default": {
        "BACKEND": "django.core.cache.backends.db.DatabaseCache",
        "LOCATION": "console_cache",
        "OPTIONS": {"MAX_ENTRIES": 100_000},  # nobody pushes a count of wrong codes out by trying many names
    }
}
PASSWORD_RESET_TIMEOUT = int(timedelta(hours=24).total_seconds())

SESSION_COOKIE_AGE = int(timedelta(hours=12).total_seconds())  # at most, however busy
CLAIM_TIME = env.minutes("CLAIM_MINUTES", 30, highest=720)  # how long a claim lasts that nobody works on
SESSION_IDLE_TIMEOUT = env.minutes("SESSION_IDLE_MINUTES", 30, highest=720)  # background refreshes do not extend it
# __Host- and Secure need https, which neither a laptop nor the demo has.
_PREFIX = "__Host-" if PRODUCTION else ""
SESSION_COOKIE_NAME = f"{_PREFIX}sessionid"
CSRF_FAILURE_VIEW = "console.views.errors.csrf_failure"
CSRF_COOKIE_NAME = f"{_PREFIX}csrftoken"
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = PRODUCTION
SESSION_COOKIE_HTTPONLY = CSRF_COOKIE_HTTPONLY = True
SESSION_COOKIE_SAMESITE = CSRF_COOKIE_SAMESITE = "Lax"
MESSAGE_STORAGE = "django.contrib.messages.storage.session.SessionStorage"  # no cookie of its own

# --- Headers ----------------------------------------------------------------------------------------------------------

CONTENT_SECURITY_POLICY = {
    "DIRECTIVES": {
        "default-src": [SELF],
        "script-src": [SELF],
        "style-src": [SELF],
        "img-src": [SELF, "data:"],
        "object-src": [NONE],
        "base-uri": [NONE],
        "form-action": [SELF],
        "frame-ancestors": [NONE],
    }
}
X_FRAME_OPTIONS = "DENY"
SECURE_CONTENT_TYPE_NOSNIFF = True
SECURE_REFERRER_POLICY = "same-origin"
SECURE_CROSS_ORIGIN_OPENER_POLICY = "same-origin"
SECURE_HSTS_SECONDS = int(timedelta(days=365).total_seconds()) if PRODUCTION else 0
SECURE_HSTS_INCLUDE_SUBDOMAINS = False  # the neighbours' domains are not ours to decide about
# No redirect to https here: that is the proxy's, and probes come over plain http.

# --- Celery: tasks may be delivered twice, and the broker never carries truth -----------------------------------------

# Runs have a queue of their own, which every worker takes from in turn with the other one: however many run, sweeps and settles go on.
CELERY_TASK_QUEUES = [Queue(name, Exchange(name), routing_key=name) for name in ("celery", "runs")]
CELERY_TASK_ROUTES = {f"console.tasks.{name}": {"queue": "runs"} for name in ("advance_run", "undo_run")}
CELERY_TASK_ACKS_LATE = True
CELERY_TASK_REJECT_ON_WORKER_LOST = True
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
CELERY_TASK_IGNORE_RESULT = True
CELERY_TASK_SOFT_TIME_LIMIT = 90
CELERY_TASK_TIME_LIMIT = 120  # below the visibility time-out, else a slow task runs twice at once
CELERY_TIMEZONE = "UTC"
# In memory: a file that a kill left half written kept beat from ever starting again, and a new container has none.
CELERY_BEAT_SCHEDULER = "celery.beat:Scheduler"
CELERY_WORKER_HIJACK_ROOT_LOGGER = False
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_BROKER_CONNECTION_TIMEOUT = 3
# A request that cannot reach the broker goes on: the sweep finds what waits.
CELERY_TASK_PUBLISH_RETRY_POLICY = {"max_retries": 1, "interval_start": 0, "interval_step": 0.2, "interval_max": 0.2}
if CELERY_BROKER_URL.startswith(("redis", "sentinel")):
    CELERY_BROKER_TRANSPORT_OPTIONS = {
        "visibility_timeout": 180,
        # Without these two a killed worker's message comes back only every 100 s.
        "unacked_restore_interval": 5,
        "unacked_restore_throttle": 1,
        "socket_connect_timeout": 3,
        "socket_timeout": 3,  # a broker that hangs is one that does not answer; a worker's own wait for messages is 1 s
    }
elif CELERY_BROKER_URL.startswith("amqp"):
    CELERY_BROKER_TRANSPORT_OPTIONS = {"confirm_publish": True}

# --- Durable runs -----------------------------------------------------------------------------------------------------

RUN_TYPES = tuple(env.words("RUN_TYPES"))  # modules that declare run types, agents/runs.py
RUN_TYPES_STRICT = env.boolean("RUN_TYPES_STRICT", False)  # a design gap is an error instead of a warning
RUN_LEASE_S = env.integer("RUN_LEASE_S", 15, lowest=1, highest=300)  # after so long a run whose worker died goes on elsewhere
RUN_CLAIM_S = CELERY_TASK_TIME_LIMIT + 30  # whoever is at a step for longer has died
RUN_QUEUED_S = env.integer(
    "RUN_QUEUED_S", 15, lowest=1, highest=300
)  # how long the sweep leaves a run to the task that was sent for it
RUN_STORE = env.text("RUN_STORE", next(iter(ACTION_STORES), ""))  # where the agents of new runs keep their records
# The same store for a role that may write what agents write; only workers need it. Unset: as ACTION_STORES has it.
RUN_STORE_URL = env.text("RUN_STORE_URL", "")

# --- Resolvers --------------------------------------------------------------------------------------------------------

RESOLVER_SWEEP_S = 2.0  # as schedule.py has it
RESOLVER_CLAIM_S = 30  # whoever asks longer has died; a resolver's own limit is 10 s, a store's too
# Dotted paths that a `python` resolver may name, and host or host:port that may be asked over http or in a private network.
RESOLVER_CALLABLES = tuple(env.words("RESOLVER_CALLABLES"))
RESOLVER_ALLOWED_HOSTS = tuple(env.words("RESOLVER_ALLOWED_HOSTS"))

# --- Numbers ----------------------------------------------------------------------------------------------------------

TALLY_EVERY_S = 5.0  # a web process writes what it counted at most so often; a worker after each task

# --- Spans: none, and nothing imported, without a collector ------------------------------------------------------------

OTEL_EXPORTER_OTLP_ENDPOINT = env.optional_url("OTEL_EXPORTER_OTLP_ENDPOINT")  # http://collector:4318; /v1/traces is added
OTEL_SERVICE_NAME = env.text("OTEL_SERVICE_NAME", "settle")
SPAN_EVERY_S = env.integer("OTEL_BSP_SCHEDULE_DELAY", 5_000, lowest=50, highest=3_600_000) / 1000
SPAN_EXPORT_S = 3.0  # a collector that hangs; the end of a process waits for two of these

# --- Notifications ----------------------------------------------------------------------------------------------------

NOTIFY_WEBHOOK_S = 10.0  # one message to one address, from look-up to the last byte

# --- Logging: one line each, never the arguments of an action ---------------------------------------------------------

LOG_FORMAT = env.choice("LOG_FORMAT", "console" if DEBUG else "json", ("json", "console"))
_SHARED_PROCESSORS: list[Any] = [
    structlog.contextvars.merge_contextvars,
    structlog.stdlib.add_log_level,
    structlog.stdlib.add_logger_name,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
]
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "filters": {"pathless": {"()": "console.logs.Pathless"}},
    "formatters": {
        "line": {
            "()": structlog.stdlib.ProcessorFormatter,
            "processors": [
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                tame,
                structlog.processors.JSONRenderer() if LOG_FORMAT == "json" else structlog.dev.ConsoleRenderer(colors=False),
            ],
            "foreign_pre_chain": _SHARED_PROCESSORS,
        }
    },
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line", "filters": ["pathless"]}},
    "root": {"handlers": ["stderr"], "level": "INFO"},
    "loggers": {
        "django": {"handlers": [], "level": "INFO", "propagate": True},
        "django.request": {"level": "ERROR"},  # what was answered stands in the line of its request
        "httpx": {"level": "WARNING"},  # else each request of a store is a line, several a second
        # The server's own words in our form; its access lines hold addresses with what was searched for.
        "uvicorn": {"handlers": [], "level": "INFO", "propagate": True},
        "uvicorn.access": {"handlers": [], "level": "CRITICAL", "propagate": False},
        # A task has one line of ours (task_lines.py); Celery's would repeat the text of an error.
        "celery.app.trace": {"level": "CRITICAL"},
        "celery.worker.strategy": {"level": "WARNING"},
        "celery.beat": {"level": "WARNING"},
    },
}
if PRODUCTION:
    logging.captureWarnings(True)  # what libraries warn of is a line like any other
structlog.configure(
    processors=[
        structlog.stdlib.filter_by_level,
        *_SHARED_PROCESSORS,
        structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
    ],
    logger_factory=structlog.stdlib.LoggerFactory(),
    wrapper_class=structlog.stdlib.BoundLogger,
    cache_logger_on_first_use=True,
)
