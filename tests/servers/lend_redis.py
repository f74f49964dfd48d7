"""Runs a program on a private Redis: `python -m tests.servers.lend_redis manage.py check` (REDIS_URL names it)."""

import os
import subprocess
import sys

from tests.servers.plugin import start_redis
from tests.servers.scratch import Scratch


def main(words: list[str]) -> int:
    scratch = Scratch(None)
    try:
        environment = {**os.environ, "REDIS_URL": start_redis(scratch, "redis").url}
        return subprocess.run([sys.executable, *words], env=environment).returncode
    finally:
        scratch.close()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
