"""A Redis-like server for one test, to flush, freeze, kill and bring back."""

import signal

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from project.devservices.valkey import ValkeyServer


class PrivateRedis:
    """A running server that nobody else uses; it appends every command to a file before it answers."""

    def __init__(self, server: ValkeyServer) -> None:
        self._server = server

    @property
    def url(self) -> str:
        return self._server.url

    @property
    def port(self) -> int:
        assert self._server.port
        return self._server.port

    def client(self) -> redis.Redis:
        """Return a new client that neither waits long nor tries again."""
        return redis.Redis(port=self.port, socket_timeout=5, retry=Retry(NoBackoff(), 0), decode_responses=True)

    def flushall(self) -> None:
        """Make it forget everything; it goes on as the same process."""
        with self.client() as client:
            client.flushall()

    def pause(self) -> None:
        """Freeze it: connections stay open, nothing is answered."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let a frozen server go on; it answers what was sent meanwhile."""
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        """Kill it: connections break, its memory is gone; the file of commands stays."""
        self._signal(signal.SIGKILL)
        if self._server.process:
            assert self._server.process.wait(10)

    def restart(self, *, forget: bool = False) -> None:
        """Kill it if it runs and start it on the same port, with all it had been told or (`forget`) nothing."""
        port = self.port
        self.kill()
        if forget:
            self._server.forget()
        self._server.start()
        assert self.port == port, "the port was taken while the server was down"

    def stop(self) -> None:
        """End it for good; killed, because Valkey refuses to be told so while it writes its first file of commands."""
        self.kill()
        self._server.stop()

    def _signal(self, number: signal.Signals) -> None:
        if self._server.process:
            self._server.process.signal(number)
