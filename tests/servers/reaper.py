"""Waits for the end of a test run, then stops what the run started: `python -m tests.servers.reaper FOLDER`."""

import contextlib
import os
import shutil
import signal
import sys
from pathlib import Path

from project.devservices.binaries import PostgresBinaries
from project.devservices.postgres import PostgresServer
from project.devservices.processes import ServerProcess
from project.devservices.server import Server
from project.devservices.valkey import ValkeyServer
from tests.servers.scratch import PROCESSES_FILE


def main(folder: Path) -> None:
    sys.stdin.read()
    kill_processes(folder / PROCESSES_FILE)
    for state in folder.glob("*/state.json"):
        server: Server
        if (state.parent / "data" / "PG_VERSION").exists():
            server = PostgresServer(state.parent, PostgresBinaries(Path()))
        else:
            server = ValkeyServer(state.parent, Path())
        server.stop()
    shutil.rmtree(folder, ignore_errors=True)


def kill_processes(listed: Path) -> None:
    if not listed.exists():
        return
    for line in listed.read_text().splitlines():
        pid, _, began = line.partition(" ")
        if ServerProcess(int(pid), began).is_running():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(int(pid), signal.SIGKILL)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
