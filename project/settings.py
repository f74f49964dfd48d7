"""How this deployment is put together; the only reader of the environment.

Every variable is listed, with its meaning, in `.env.example`. Without any, the defaults are those of production.
"""

import logging
from datetime import timedelta
from pathlib import Path
from urllib.parse import urlsplit

import environ
from django.core.exceptions import ImproperlyConfigured

from project.devservices.addresses import read_addresses

BASE_DIR = Path(__file__).resolve().parent.parent

env = environ.Env()
# The real environment wins over the file.
env_file = Path(env.str("ENV_FILE", default=str(BASE_DIR / ".env")))
if env_file.is_file():
    env.read_env(env_file)


def switch(name: str, *, default: bool) -> bool:
    """Return a variable that is on or off; any other word is refused, since it may be meant to switch on."""
    value = env.str(name, default="").strip().lower()
    if value in ("on", "true", "yes", "y", "ok", "1"):
        return True
    if value in ("off", "false", "no", "n", "0"):
        return False
    if value:
        raise ImproperlyConfigured(f"{name} is {value!r}: write on or off.")
    return default


def whole(name: str, default: int) -> int:
    """Return a variable that is a whole number, or say in one sentence that it is none."""
    value = env.str(name, default="").strip() or str(default)
    if not (value.isascii() and value.isdigit()):
        raise ImproperlyConfigured(f"{name} is {value!r}: write a whole number, as in {default}.")
    return int(value)


def listed(name: str, default: tuple[str, ...] = ()) -> list[str]:
    """Return what a variable lists, separated by commas; a blank after a comma belongs to nothing."""
    return [value.strip() for value in env.list(name, default=default) if value.strip()]


DEBUG = switch("DEBUG", default=False)


def required(name: str, what: str, development_default: str) -> str:
    """Return a variable that production cannot do without, or say in one sentence that it is missing."""
    value = env.str(name, default="")
    if not value and not DEBUG:
        raise ImproperlyConfigured(f"{name} is not set: {what}, in the environment or in .env (see .env.example).")
    return value or development_default


def seconds(name: str, default: float) -> timedelta:
    """Return a variable given in seconds as a span of time, or say in one sentence that it is none."""
    try:
        value = timedelta(seconds=float(env.str(name, default=str(default))))
    except (ValueError, OverflowError):
        value = timedelta(0)
    if value <= timedelta(0):
        raise ImproperlyConfigured(
            f"{name}, from which the setting {name.removesuffix('_SECONDS')} comes, is {env.str(name)!r}: write a "
            "number of seconds above zero, as in 60."
        )
    return value


# Security

SECRET_KEY = required("SECRET_KEY", "give 50 random characters", "insecure-development-key")
ALLOWED_HOSTS = listed("ALLOWED_HOSTS", ("localhost", "127.0.0.1", "[::1]") if DEBUG else ())
CSRF_TRUSTED_ORIGINS = listed("CSRF_TRUSTED_ORIGINS")

HTTPS = switch("HTTPS", default=not DEBUG)
SECURE_SSL_REDIRECT = SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = HTTPS
SECURE_HSTS_SECONDS = whole("HSTS_SECONDS", 31_536_000) if HTTPS else 0
SECURE_HSTS_INCLUDE_SUBDOMAINS = SECURE_HSTS_PRELOAD = HTTPS
if switch("BEHIND_TLS_PROXY", default=False):
    SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")

# Applications

INSTALLED_APPS = [
    "project",  # first: it sets the broker, which must be there before any actor is imported
    "project.apps.AdminConfig",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.postgres",
    "django.contrib.sessions",
    "django.contrib.staticfiles",
    "pgtrigger",
    "leases",
    "outbox",
    "billing",
]
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]
ROOT_URLCONF = "project.urls"
WSGI_APPLICATION = "project.wsgi.application"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": f"django.contrib.auth.password_validation.{name}"}
    for name in ("UserAttributeSimilarityValidator", "MinimumLengthValidator", "CommonPasswordValidator")
]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
USE_TZ = True
TIME_ZONE = "UTC"
LANGUAGE_CODE = "en"
FORMAT_MODULE_PATH = "project.formats"
STATIC_URL = "static/"
STATIC_ROOT = env.str("STATIC_ROOT", default=str(BASE_DIR / ".local" / "static"))

# Servers. With DEBUG on, the development servers fill in for an address that is not given. They may never have been
# started yet: port 1 refuses every connection, and the check project.E001 says what to do.

development = read_addresses(BASE_DIR / ".local") if DEBUG else {}
DEVSERVICES = [
    name
    for name, variable in (("postgres", "DATABASE_URL"), ("valkey", "REDIS_URL"))
    if DEBUG and not env.str(variable, default="")
]

DATABASE_URL = required(
    "DATABASE_URL",
    "name the PostgreSQL database, as in postgresql://user:password@host:5432/name",
    development.get("DATABASE_URL", "postgresql://postgres@127.0.0.1:1/invoice_once"),
)
DATABASES = {"default": env.db_url_config(DATABASE_URL)}
DATABASES["default"]["CONN_MAX_AGE"] = whole("DATABASE_CONN_MAX_AGE", 60)
DATABASES["default"]["CONN_HEALTH_CHECKS"] = True
DATABASES["default"].setdefault("OPTIONS", {}).setdefault("connect_timeout", 5)

REDIS_URL = required(
    "REDIS_URL",
    "name the Redis or Valkey server, as in redis://host:6379/0",
    development.get("REDIS_URL", "redis://127.0.0.1:1/0"),
)
BROKER_URL = env.str("BROKER_URL", default=REDIS_URL)
# RabbitMQ does not tell, so it is told here; 30 minutes is what it comes with.
BROKER_CONSUMER_TIMEOUT = seconds("BROKER_CONSUMER_TIMEOUT_SECONDS", 1800.0)
leases_redis_url = env.str("LEASES_REDIS_URL", default=REDIS_URL)
for name, url in (("REDIS_URL", REDIS_URL), ("LEASES_REDIS_URL", leases_redis_url)):
    if urlsplit(url).scheme not in ("redis", "rediss", "unix"):
        raise ImproperlyConfigured(
            f"{name} begins with {urlsplit(url).scheme!r}: write redis:// or rediss://, also for Valkey."
        )

# Leases

LEASES_TTL = seconds("LEASES_TTL_SECONDS", 60.0)
LEASES_MAX_HOLD = seconds("LEASES_MAX_HOLD_SECONDS", 3600.0)
# The keeper renews every third of a lease and must hear of a failure before the next one is due: connecting and
# waiting for the answer take at most a third together.
leases_redis_timeout = min(2.0, LEASES_TTL.total_seconds() / 6)
CACHES = {
    "default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"},
    "leases": {
        "BACKEND": "django_redis.cache.RedisCache",
        "LOCATION": leases_redis_url,
        "OPTIONS": {"SOCKET_CONNECT_TIMEOUT": leases_redis_timeout, "SOCKET_TIMEOUT": leases_redis_timeout},
    },
}

# Mail

EMAIL_HOST = env.str("EMAIL_HOST", default="localhost")
EMAIL_PORT = whole("EMAIL_PORT", 25)
EMAIL_HOST_USER = env.str("EMAIL_HOST_USER", default="")
EMAIL_HOST_PASSWORD = env.str("EMAIL_HOST_PASSWORD", default="")
EMAIL_USE_TLS = switch("EMAIL_USE_TLS", default=False)
EMAIL_USE_SSL = switch("EMAIL_USE_SSL", default=False)
EMAIL_TIMEOUT = seconds("EMAIL_TIMEOUT_SECONDS", 10.0).total_seconds()
DEFAULT_FROM_EMAIL = env.str("DEFAULT_FROM_EMAIL", default="billing@localhost")
SERVER_EMAIL = DEFAULT_FROM_EMAIL
ALERT_EMAILS = listed("ALERT_EMAILS")

# Billing

BILLING_TAX_URL = env.str("BILLING_TAX_URL", default="http://127.0.0.1:8899")
BILLING_TAX_TIMEOUT = seconds("BILLING_TAX_TIMEOUT_SECONDS", min(15.0, LEASES_TTL.total_seconds() / 4))
BILLING_TAX_LINES_PER_REQUEST = whole("BILLING_TAX_LINES_PER_REQUEST", 100)
BILLING_SERIES = env.str("BILLING_SERIES", default="INV")
BILLING_CREDIT_SERIES = env.str("BILLING_CREDIT_SERIES", default="CN")
BILLING_EMAIL_FROM = env.str("BILLING_EMAIL_FROM", default="")

# Logging

LOG_FORMAT = env.str("LOG_FORMAT", default="plain", choices=["plain", "json"])
LOG_LEVEL = env.str("LOG_LEVEL", default="INFO").upper()
if LOG_LEVEL not in logging.getLevelNamesMapping():
    raise ImproperlyConfigured(f"LOG_LEVEL is {LOG_LEVEL!r}: write DEBUG, INFO, WARNING, ERROR or CRITICAL.")
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "filters": {"job": {"()": "project.logs.JobFilter"}},
    "formatters": {"plain": {"()": "project.logs.PlainFormatter"}, "json": {"()": "project.logs.JsonFormatter"}},
    "handlers": {
        "stderr": {"class": "logging.StreamHandler", "filters": ["job"], "formatter": LOG_FORMAT, "level": "NOTSET"}
    },
    "root": {"handlers": ["stderr"], "level": LOG_LEVEL},
    # What Django logs goes the same way, once.
    "loggers": {
        "django": {"handlers": [], "propagate": True},
        "httpx": {"level": "WARNING"},
        "pika": {"level": "WARNING"},
        "mail.log": {"level": "WARNING"},  # of aiosmtpd: each step of each connection
    },
}
# Django would add its own handlers first, among them one that mails whenever a request fails.
LOGGING_CONFIG = "logging.config.dictConfig"
