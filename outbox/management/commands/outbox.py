"""manage.py outbox: look at messages, and decide about them."""

import argparse
import getpass
import json
import os
import socket
import sys
from collections.abc import Iterable
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import DataError, router
from django.db.models.functions import Coalesce, Now

from outbox import channels
from outbox.decisions import Action, decide
from outbox.errors import DecisionRefused, OutboxError, UnknownChannel
from outbox.forgetting import put_right
from outbox.inspection import status
from outbox.management import arguments, outage
from outbox.models import Message, State
from outbox.pruning import prune

EXIT_REFUSED = 1
EXIT_PARKED = 3

EPILOG = """
examples:
  manage.py outbox status
  manage.py outbox show invoice:42:2026-05:v1
  manage.py outbox resolve --arrived --reason "in the provider's log, 10:32" invoice:42:2026-05:v1
  manage.py outbox resolve --send-again --reason "customer has nothing" invoice:42:2026-05:v1
  manage.py outbox requeue --reason "mailbox is no longer full" --all-dead --channel email
  manage.py outbox cancel --reason "wrong customer" invoice:42:2026-05:v1
  manage.py outbox prune --older-than 400
  manage.py outbox after_failover

A message is named by its dedupe key, or by its number as #123.

exit codes:
  0  done
  1  some messages were refused; the others are done
  2  bad usage
  3  status: there are messages in doubt or dead
  75 the database does not answer
"""


class Command(BaseCommand):
    help = "Look at the messages of the outbox, and decide about those that need a person."
    unavailable_returncode = outage.EXIT_DATABASE_LOST

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> CommandParser:
        return super().create_parser(
            prog_name, subcommand, epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter, **kwargs
        )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--database", help="the alias; default where the router writes messages")
        verbs = parser.add_subparsers(dest="verb", required=True)
        parsers = {
            "status": verbs.add_parser("status", help="how each channel stands"),
            "show": verbs.add_parser("show", help="everything about one message"),
            "resolve": verbs.add_parser("resolve", help="decide about messages in doubt"),
            "requeue": verbs.add_parser("requeue", help="give dead messages another chance"),
            "cancel": verbs.add_parser("cancel", help="never send these messages"),
            "after_failover": verbs.add_parser(
                "after_failover", help="after a promotion or a restore: put in doubt what may have been sent"
            ),
            "prune": verbs.add_parser("prune", help="empty the payload of old messages; their keys stay"),
        }
        for verb in ("status", "show"):
            parsers[verb].add_argument("--json", action="store_true", help="one JSON document on stdout")
        parsers["show"].add_argument("message")
        how = parsers["resolve"].add_mutually_exclusive_group(required=True)
        how.add_argument("--arrived", action="store_true", help="the receiver has it")
        how.add_argument("--send-again", action="store_true", help="send it once more, at the risk of two")
        parsers["requeue"].add_argument("--all-dead", action="store_true", help="all dead messages of --channel")
        parsers["requeue"].add_argument("--channel")
        for verb in ("resolve", "requeue", "cancel"):
            parsers[verb].add_argument("messages", nargs="*" if verb == "requeue" else "+", metavar="message")
            parsers[verb].add_argument("--reason", required=True, help="for those who ask later")
            parsers[verb].add_argument("--dry-run", action="store_true", help="say which; change nothing")
        parsers["after_failover"].add_argument(
            "--nothing-lost", action="store_true", help="it was a synchronous standby: only accept the new identity"
        )
        parsers["after_failover"].add_argument("--dry-run", action="store_true", help="count them; change nothing")
        parsers["prune"].add_argument(
            "--older-than",
            type=arguments.days,
            metavar="DAYS",
            required=True,
            help="sent longer ago; or cancelled, and published longer ago",
        )
        parsers["prune"].add_argument(
            "--batch-size", type=arguments.whole(10**5), default=1000, help="per transaction (default: 1000)"
        )
        parsers["prune"].add_argument("--dry-run", action="store_true", help="count them; change nothing")

    def handle(self, *args: Any, **options: Any) -> None:
        self.using = outage.known(options["database"] or router.db_for_write(Message))
        try:
            with outage.told():
                getattr(self, f"_{options['verb']}")(options)
        except OutboxError as error:
            raise CommandError(str(error)) from error

    def _status(self, options: dict[str, Any]) -> None:
        channels = status(self.using)
        if options["json"]:
            self.stdout.write(json.dumps([channel.as_dict() for channel in channels]))
        elif not channels:
            self.stdout.write("nothing is unfinished")
        for channel in () if options["json"] else channels:
            figures = channel.as_dict()
            name, due, doubt, retrying, error = (
                figures.pop(key)
                for key in ("channel", "oldest_due_seconds", "oldest_in_doubt_seconds", "retrying", "last_error")
            )
            parts = [f"{count} {words.replace('_', ' ')}" for words, count in figures.items() if count]
            if retrying:
                waiting = bool(channel.due) + bool(channel.later)
                parts[:waiting] = [f"{' and '.join(parts[:waiting])} ({retrying} of these tried before)"]
            if due is not None:
                parts.append(f"oldest due for {due:.0f} s")
            if doubt is not None:
                parts.append(f"oldest in doubt for {doubt:.0f} s")
            self.stdout.write(f"{name}: {', '.join(parts)}")
            if error is not None:
                self.stdout.write(f"    tried of late: {' '.join(error.split())[:300]}")
        if any(channel.in_doubt or channel.dead for channel in channels):
            sys.exit(EXIT_PARKED)

    def _show(self, options: dict[str, Any]) -> None:
        message = self._find(options["message"])
        facts = {field.name: getattr(message, field.name) for field in message._meta.concrete_fields}
        decided = message.decisions.order_by("at").values("at", "by", "action", "reason", "state_before", "state_after")
        facts["decisions"] = list(decided)
        if options["json"]:
            self.stdout.write(json.dumps(facts, default=str))
            return
        if message.last_error and not message.attempts:
            facts["attempts"] = "0 (those that found nobody there are not counted)"
        for name, value in facts.items():
            self.stdout.write(f"{name + ':':18}{_shown(value)}")

    def _resolve(self, options: dict[str, Any]) -> None:
        self._decide(Action.ARRIVED if options["arrived"] else Action.SEND_AGAIN, options)

    def _requeue(self, options: dict[str, Any]) -> None:
        if options["all_dead"] == bool(options["messages"]):
            raise CommandError("name messages, or use --all-dead", returncode=2)
        if options["channel"] and not options["all_dead"]:
            raise CommandError("--channel goes with --all-dead", returncode=2)
        self._decide(Action.REQUEUE, options)

    def _cancel(self, options: dict[str, Any]) -> None:
        self._decide(Action.CANCEL, options)

    def _after_failover(self, options: dict[str, Any]) -> None:
        dry_run = options["dry_run"]
        parked = put_right(self.using, nothing_lost=options["nothing_lost"], dry_run=dry_run)
        words = "would put {} in doubt" if dry_run else "put {} in doubt; drainers may go on"
        self.stdout.write(words.format(_messages(parked)))

    def _prune(self, options: dict[str, Any]) -> None:
        if options["dry_run"]:
            old = Message.objects.using(self.using).filter(
                state__in=[State.SENT, State.CANCELLED], payload__isnull=False
            )
            count = old.alias(at=Coalesce("sent_at", "created_at")).filter(at__lt=Now() - options["older_than"]).count()
            self.stdout.write(f"would empty {_messages(count)}")
            return
        total = 0
        for count in prune(self.using, older_than=options["older_than"], batch_size=options["batch_size"]):
            total += count
            if sys.stderr.isatty():
                sys.stderr.write(f"\remptied {_messages(total)}\x1b[K")
        self.stdout.write(f"emptied {_messages(total)}")

    def _decide(self, action: Action, options: dict[str, Any]) -> None:
        by = _operator()
        reason = options["reason"].encode("utf-8", "replace").decode()  # arguments may hold bytes that are no text
        refused = 0
        for message in self._chosen(options):
            if options["dry_run"]:
                self.stdout.write(f"would {action.value}: {message}")
                continue
            try:
                done = decide(action, message.id, reason=reason, by=by, using=self.using)
                self.stdout.write(f"{action.value}: {done}")
            except DecisionRefused as error:
                refused += 1
                self.stderr.write(str(error))
        if refused:
            sys.exit(EXIT_REFUSED)

    def _chosen(self, options: dict[str, Any]) -> Iterable[Message]:
        if options.get("all_dead"):
            dead = Message.objects.using(self.using).filter(state=State.DEAD).defer("payload").order_by("-id")
            if name := options["channel"]:
                dead = dead.filter(channel=name)
            if not dead.exists():
                if name and name not in channels.names():
                    raise UnknownChannel(name, channels.names())
                self.stdout.write("nothing is dead")
            return dead.iterator()
        return [self._find(name) for name in options["messages"]]

    def _find(self, name: str) -> Message:
        try:
            by = {"id": int(name[1:])} if name.startswith("#") and name[1:].isdecimal() else {"dedupe_key": name}
            message = Message.objects.using(self.using).filter(**by).first()
        except (ValueError, DataError):  # no number that Python reads, no text that PostgreSQL takes
            message = None
        if message is None:
            raise CommandError(f"there is no message {name!r}")
        return message


def _operator() -> str:
    """Who runs this process, as `user@host`."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        user = f"uid {os.getuid()}"
    return f"{user}@{socket.gethostname()}"


def _messages(count: int) -> str:
    return "1 message" if count == 1 else f"{count} messages"


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return "".join(f"\n    {'  '.join(f'{k}={v}' for k, v in entry.items())}" for entry in value) or "none"
    if not isinstance(value, dict):
        return str(value)
    raw = value.get("raw")
    if not isinstance(raw, str):
        return json.dumps(value, ensure_ascii=False, indent=2)
    rest = {key: value[key] for key in value if key != "raw"}  # a mail is read as a mail
    return f"{json.dumps(rest, ensure_ascii=False, indent=2)}\n\n{raw.replace(chr(13), '').rstrip()}\n"
