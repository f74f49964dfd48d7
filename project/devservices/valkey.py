"""Valkey, or Redis, for one checkout or one test run."""

import os
import shutil
import signal
from pathlib import Path

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from .processes import ServerProcess, start_detached
from .server import Server


class ValkeyServer(Server):
    """A Valkey that keeps what it was told over a restart, and forgets nothing to make room."""

    name = "valkey"
    stop_signal = signal.SIGTERM

    def __init__(self, home: Path, binary: Path) -> None:
        super().__init__(home)
        self._binary = binary

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def prepare(self) -> None:
        self.data.mkdir(mode=0o700, exist_ok=True)

    def spawn(self, port: int) -> ServerProcess:
        # fmt: off
        command: list[str | Path] = [
            self._binary, "--bind", "127.0.0.1", "--port", str(port), "--dir", self.data, "--daemonize", "no",
            "--appendonly", "yes", "--appendfsync", "everysec", "--maxmemory-policy", "noeviction",
        ]
        # fmt: on
        return start_detached(
            command, log=self.log, directory=self.data, environment={"LC_ALL": "C", "PATH": os.defpath}
        )

    def forget(self) -> None:
        """Remove everything a stopped server had been told."""
        shutil.rmtree(self.data)

    def pid_if_ours(self) -> int | None:
        try:
            with redis.Redis(
                host="127.0.0.1", port=self.port or 0, socket_timeout=2, retry=Retry(NoBackoff(), 0)
            ) as client:
                folder = client.config_get("dir")["dir"]
                pid = int(client.info("server")["process_id"])
        except (redis.RedisError, OSError, KeyError, ValueError):
            return None
        return pid if os.path.realpath(folder) == os.path.realpath(self.data) else None
