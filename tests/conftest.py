"""Real services for tests: PostgreSQL and, for S3, Ceph's RadosGW, from Debian's packages.

`postgres_url` and `s3_server` start theirs when the first test asks, on free loopback ports, and
stop it with the session. A machine without the programs skips those tests and says which are
missing. Packages: postgresql; radosgw ceph-mon ceph-osd ceph-mgr ceph-common.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

# Tests run with import-mode=importlib, which does not make siblings importable.
sys.path.insert(0, str(Path(__file__).parent))

START_SECONDS = 90


class S3Server(NamedTuple):
    """A running S3 server with an empty bucket."""

    endpoint: str
    access_key: str
    secret_key: str
    bucket: str
    region: str = "us-east-1"

    def environ(self) -> dict[str, str]:
        """What `sgld serve` has to be told."""
        return {
            "SGLD_CLOUD_STORAGE_TYPE": "s3",
            "SGLD_S3_BUCKET_NAME": self.bucket,
            "SGLD_S3_ENDPOINT_URL": self.endpoint,
            "SGLD_S3_REGION_NAME": self.region,
            "SGLD_S3_ACCESS_KEY_ID": self.access_key,
            "SGLD_S3_SECRET_ACCESS_KEY": self.secret_key,
        }


class CannotStart(Exception):
    """A service cannot be started here; the text says why."""


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """URL of an empty PostgreSQL database, `postgresql://…`, for this session."""
    with _or_skip(_postgres()) as url:
        yield url


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    """A RadosGW for this session; about 15 s to start."""
    with _or_skip(_radosgw()) as server:
        yield server


@contextmanager
def _or_skip(service: Any) -> Iterator[Any]:
    with ExitStack() as stack:
        try:
            running = stack.enter_context(service)
        except CannotStart as error:
            pytest.skip(str(error))
        yield running


@contextmanager
def _postgres() -> Iterator[str]:
    path = os.pathsep.join([*_postgres_folders(), os.environ.get("PATH", "")])
    initdb, server, ready = (_program(name, path) for name in ("initdb", "postgres", "pg_isready"))
    port = _free_ports(1)[0]
    with _folder() as folder, ExitStack() as stack:
        user: dict[str, Any] = {"cwd": folder}
        if os.geteuid() == 0:
            # PostgreSQL refuses to run as root; its package brings a user of its own.
            try:
                entry = pwd.getpwnam("postgres")
            except KeyError:
                raise CannotStart("PostgreSQL does not run as root") from None
            os.chown(folder, entry.pw_uid, entry.pw_gid)
            user |= {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
        made = [initdb, "-D", "data", "-U", "sgld", "-A", "trust", "-E", "UTF8", "--locale=C"]
        _call([*made, "--no-sync"], **user)
        options = ["-p", str(port), "-k", str(folder), "-h", "127.0.0.1", "-c", "fsync=off"]
        _daemon(stack, [server, "-D", "data", *options], folder / "postgres.log", **user)
        _until(
            lambda: _succeeds([ready, "-q", "-h", "127.0.0.1", "-p", str(port)]),
            "PostgreSQL",
            folder / "postgres.log",
        )
        yield f"postgresql://sgld@127.0.0.1:{port}/postgres"


def _postgres_folders() -> list[str]:
    """Debian keeps the programs of each version apart; the newest first."""
    found = Path("/usr/lib/postgresql").glob("*/bin")
    return [str(p) for p in sorted(found, key=lambda p: float(p.parent.name), reverse=True)]


@contextmanager
def _radosgw() -> Iterator[S3Server]:
    names = ("monmaptool", "ceph-mon", "ceph-osd", "ceph-mgr", "ceph", "radosgw", "radosgw-admin")
    monmaptool, mon, osd, mgr, ceph, gateway, admin = (_program(name) for name in names)
    ports = _free_ports(3)
    with _folder() as folder, ExitStack() as stack:
        for name in ("mon", "osd", "mgr", "rgw", "run"):
            (folder / name).mkdir()
        fsid = str(uuid.uuid4())
        address = f"[v2:127.0.0.1:{ports[0]},v1:127.0.0.1:{ports[1]}]"
        conf = folder / "ceph.conf"
        conf.write_text(_ceph_conf(folder, fsid, address, ports[2]))

        def call(*arguments: str) -> str:
            return _call([*arguments, "-c", str(conf)], cwd=folder)

        def daemon(*arguments: str) -> None:
            log = folder / f"{Path(arguments[0]).name}.out"
            _daemon(stack, [*arguments, "-f", "-c", str(conf)], log, cwd=folder)

        _call(
            [monmaptool, "--create", "--fsid", fsid, "--addv", "a", address, "monmap"], cwd=folder
        )
        call(mon, "--mkfs", "-i", "a", "--monmap", "monmap")
        daemon(mon, "-i", "a")
        osd_id = str(uuid.uuid4())
        number = call(ceph, "--connect-timeout", "30", "osd", "new", osd_id).strip()
        call(osd, "-i", number, "--mkfs", "--osd-uuid", osd_id)
        daemon(osd, "-i", number)
        daemon(mgr, "-i", "x")
        _until(lambda: "1 up" in call(ceph, "osd", "stat"), "ceph-osd", folder / "ceph-osd.out")
        daemon(gateway, "-n", "client.admin")
        endpoint = f"http://127.0.0.1:{ports[2]}"
        _until(lambda: _answers(endpoint), "radosgw", folder / "radosgw.out")
        keys = ("sgldtestkey", uuid.uuid4().hex)
        call(admin, "user", "create", "--uid=sgld", "--display-name=sgld",
             f"--access-key={keys[0]}", f"--secret={keys[1]}")  # fmt: skip
        server = S3Server(endpoint, *keys, bucket="sgld-tests")
        _make_bucket(server)
        yield server


def _ceph_conf(folder: Path, fsid: str, address: str, port: int) -> str:
    """One monitor, one store in memory, no authentication inside, everything on loopback."""
    settings = {
        "fsid": fsid,
        "mon host": address,
        "mon initial members": "a",
        "public addr": "127.0.0.1",
        "public network": "127.0.0.0/8",
        "auth cluster required": "none",
        "auth service required": "none",
        "auth client required": "none",
        "osd pool default size": 1,
        "osd pool default min size": 1,
        "osd pool default pg num": 4,
        "osd crush chooseleaf type": 0,
        "osd objectstore": "memstore",
        "memstore device bytes": 1 << 30,
        "mon allow pool size one": "true",
        "mon warn on pool no redundancy": "false",
        # A developer's disk is often fuller than a storage cluster's may be.
        "mon data avail crit": 1,
        "mon data avail warn": 2,
        "ms bind ipv6": "false",
        "ms mon client mode": "crc secure",
        "ms mon service mode": "crc secure",
        "ms mon cluster mode": "crc secure",
        "run dir": folder / "run",
        "admin socket": f"{folder}/run/$name.asok",
        "log file": f"{folder}/run/$name.log",
        "pid file": f"{folder}/run/$name.pid",
        "mon data": folder / "mon",
        "osd data": folder / "osd",
        "mgr data": folder / "mgr",
        "rgw data": folder / "rgw",
        "rgw frontends": f"beast endpoint=127.0.0.1:{port}",
        "rgw enable apis": "s3, admin",
        "rgw thread pool size": 8,
    }
    return "\n".join(["[global]", *(f"{name} = {value}" for name, value in settings.items()), ""])


def _make_bucket(server: S3Server) -> None:
    boto3 = pytest.importorskip("boto3")
    client = boto3.session.Session().client(
        "s3",
        endpoint_url=server.endpoint,
        region_name=server.region,
        aws_access_key_id=server.access_key,
        aws_secret_access_key=server.secret_key,
    )
    client.create_bucket(Bucket=server.bucket)
    client.close()


def _program(name: str, path: str | None = None) -> str:
    found = shutil.which(name, path=path)
    if found is None:
        raise CannotStart(f"the program {name} is not installed")
    return found


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for listener in sockets:
            listener.bind(("127.0.0.1", 0))
        return [listener.getsockname()[1] for listener in sockets]


@contextmanager
def _folder() -> Iterator[Path]:
    # Not pytest's own folder: a service that runs as another user could not enter that, and a
    # socket's path must be short.
    folder = Path(tempfile.mkdtemp(prefix="sgld-service-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _call(command: Sequence[str], **options: Any) -> str:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=START_SECONDS, check=False, **options
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise CannotStart(f"{Path(command[0]).name}: {error}") from error
    if done.returncode:
        raise CannotStart(f"{Path(command[0]).name} failed: {done.stderr.strip()[-500:]}")
    return done.stdout


def _succeeds(command: Sequence[str]) -> bool:
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _answers(url: str) -> bool:
    try:
        httpx.get(url, timeout=2, trust_env=False)
    except httpx.HTTPError:
        return False
    return True


def _daemon(stack: ExitStack, command: Sequence[str], log: Path, **options: Any) -> None:
    """Start a program that ends with the stack."""
    with log.open("wb") as file:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, **options
        )
    stack.callback(process.wait)
    # Nothing of it is kept, so most may be killed; PostgreSQL ends its children itself when it is
    # interrupted, which unlike SIGTERM does not wait for clients.
    sent = signal.SIGINT if Path(command[0]).name == "postgres" else signal.SIGKILL
    stack.callback(process.send_signal, sent)


def _until(ready: Any, name: str, log: Path) -> None:
    end = time.monotonic() + START_SECONDS
    while not ready():
        if time.monotonic() > end:
            raise CannotStart(f"{name} did not get ready: {log.read_text()[-500:]}")
        time.sleep(0.1)
