"""Our drainer beside two peers: how fast each hands over, and what arrives twice when it is killed.

    DATABASE_URL=... python -m benchmarks.outbox.peers --peer-python /path/to/venv/bin/python
        [--messages 2000] [--rounds 3] [--kills 20] [--mails 1000]

The peers need a virtual environment of their own, of Python 3.12 or newer: pip install -r benchmarks/peers.txt. They
get a database of their own on the same server, called after ours, which is dropped in the end.

Speed: nothing is handed over anywhere, one thread (django-post-office: its five), batches of 100, statements prepared
in the server. The least is a bare psycopg loop with one commit for each intent and the mark before it. Crashes: real
mail to a server that takes a mail over and says so 50 ms later, four threads (five). Each drainer is killed with
SIGKILL at a random moment in the second after its first mail, and the last ones may finish. An arrival is counted by
its subject, since not every peer writes a Message-ID.
"""

import argparse
import asyncio
import json
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "benchmarks.outbox.settings")

import django

django.setup()

import psycopg  # noqa: E402
from aiosmtpd.controller import Controller  # noqa: E402
from django.db import transaction  # noqa: E402

import outbox  # noqa: E402
from benchmarks.outbox import table  # noqa: E402
from benchmarks.outbox.peer_program import RECIPIENT, SENDER, SUBJECT, TEXT  # noqa: E402
from benchmarks.outbox.raw import database, declared  # noqa: E402
from outbox.drain import Drainer, Until  # noqa: E402
from outbox.lane import Pace  # noqa: E402
from outbox.models import Message  # noqa: E402

PROGRAM = Path(__file__).with_name("peer_program.py")
PEERS = {"reliable": "django-reliable-outbox", "postoffice": "django-post-office"}
DRAIN = ["manage.py", "drain_outbox", "--channel", "email", "--claim-ttl", "3", "--skip-checks", "--until-empty"]
REPLY_AFTER_S = 0.05


class Receiver:
    """Takes a mail over, and says so a little later: what a mail server on the internet does."""

    def __init__(self) -> None:
        self.arrived: Counter[str] = Counter()

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:
        subject = next(line for line in envelope.content.splitlines() if line.startswith(b"Subject: "))
        self.arrived[subject.decode()] += 1
        await asyncio.sleep(REPLY_AFTER_S)
        return "250 taken"


class Peer:
    """A peer's program, with what it is told by the environment."""

    def __init__(self, name: str, python: str, name_of_database: str, smtp_port: int) -> None:
        given = database()
        place = {"HOST": given.get("host", ""), "PORT": str(given.get("port", "")), "USER": given.get("user", "")}
        place |= {"PASSWORD": given.get("password", ""), "NAME": name_of_database}
        self._command = [python, str(PROGRAM), name]
        self._env = {"PEER_DATABASE": json.dumps(place), "PEER_SMTP_PORT": str(smtp_port)}

    def prepare(self, count: int) -> None:
        subprocess.run([*self._command, "prepare", str(count)], env=self._env, check=True, stderr=subprocess.DEVNULL)

    def speed(self, count: int) -> float:
        self.prepare(count)
        command = [*self._command, "drain", "noop"]
        done = subprocess.run(command, env=self._env, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        return count / float(done.stdout)

    def start(self) -> "subprocess.Popen[bytes]":
        return quiet([*self._command, "drain", "smtp"], self._env)


def quiet(command: list[str], env: dict[str, str]) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def least(count: int) -> float:
    table.empty()
    table.fill(count)
    table.settle()
    return count / declared()


def ours(micro_batch: int, count: int) -> float:
    table.empty()
    table.fill(count)
    table.settle()
    pace = Pace(100, micro_batch, 1, timedelta(seconds=60), timedelta(seconds=1))
    drainer = Drainer(using="default", names=["noop"], pace=pace, until=Until.EMPTY)
    began = time.perf_counter()
    drainer.run()
    return count / (time.perf_counter() - began)


def speeds(peers: dict[str, Peer], count: int, rounds: int) -> None:
    sides: dict[str, Callable[[], float]] = {
        "ours, intent per message": partial(ours, 1, count),
        "ours, intent per 50": partial(ours, 50, count),
        "the least per message": partial(least, count),
        **{PEERS[name]: partial(peer.speed, count) for name, peer in peers.items()},
    }
    measured: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, run in sides.items():
            measured[name].append(run())
    medians = {name: statistics.median(values) for name, values in measured.items()}
    for name, median in medians.items():
        ratios = ", ".join(f"{median / medians[peer]:.2f} of {peer}" for peer in PEERS.values())
        print(f"{name:26} {median:9,.0f}/s   {ratios}   load {os.getloadavg()[0]:.1f}", flush=True)


def publish_mails(count: int) -> None:
    table.empty()
    with transaction.atomic():
        for number in range(count):
            mail = {"to": RECIPIENT, "from": SENDER, "subject": SUBJECT.format(number), "text": TEXT}
            outbox.publish("email", mail, dedupe_key=f"k{number}")


def crashes(
    name: str, receiver: Receiver, start: Callable[[], "subprocess.Popen[bytes]"], kills: int, mails: int, seed: int
) -> None:
    dice = random.Random(seed)
    receiver.arrived.clear()
    killed = 0
    while killed < kills:
        drainer, before = start(), receiver.arrived.total()
        while receiver.arrived.total() == before and drainer.poll() is None:
            time.sleep(0.005)
        time.sleep(dice.random())
        killed += drainer.poll() is None
        finished = drainer.poll() is not None
        drainer.send_signal(signal.SIGKILL)
        drainer.wait()
        if finished and len(receiver.arrived) >= mails * 0.9:
            break
    for _ in range(4):  # until what the killed ones held is free again
        start().wait()
        time.sleep(1.5)
    twice = receiver.arrived.total() - len(receiver.arrived)
    print(
        f"{name:26} {killed} kills: {len(receiver.arrived)} of {mails} arrived, {twice} second deliveries", flush=True
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer-python", required=True)
    parser.add_argument("--messages", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--mails", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    receiver = Receiver()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    server = Controller(receiver, hostname="127.0.0.1", port=port)
    server.start()
    theirs = f"{database()['dbname']}_peers"
    with psycopg.connect(**database(), autocommit=True) as admin:
        admin.execute(f'CREATE DATABASE "{theirs}"')
        try:
            peers = {name: Peer(name, options.peer_python, theirs, port) for name in PEERS}
            if options.rounds:
                speeds(peers, options.messages, options.rounds)
            if options.kills:
                env = {**os.environ, "EMAIL_HOST": "127.0.0.1", "EMAIL_PORT": str(port), "EMAIL_TIMEOUT_SECONDS": "5"}
                publish_mails(options.mails)
                drain = partial(quiet, [sys.executable, *DRAIN], env)
                crashes("ours", receiver, drain, options.kills, options.mails, options.seed)
                print(dict(Counter(Message.objects.values_list("state", flat=True))))
                for name, peer in peers.items():
                    peer.prepare(options.mails)
                    crashes(PEERS[name], receiver, peer.start, options.kills, options.mails, options.seed)
        finally:
            server.stop()
            admin.execute(f'DROP DATABASE "{theirs}" WITH (FORCE)')


if __name__ == "__main__":
    main()
