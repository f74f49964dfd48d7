"""What can go wrong with a development server; each says in one sentence what to do."""


class DevServicesError(Exception):
    """A development server cannot be had."""


class BinariesMissing(DevServicesError):
    """No binary of this server is installed."""


class Unreachable(DevServicesError):
    """The user that PostgreSQL must run as cannot reach its binaries."""


class StartFailed(DevServicesError):
    """The server ended, or did not answer, right after it was started."""


class StopFailed(DevServicesError):
    """The server was told to stop and still runs."""


class WrongVersion(DevServicesError):
    """The data were made by another major version of PostgreSQL."""
