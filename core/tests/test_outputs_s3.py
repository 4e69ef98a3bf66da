"""Results in S3: on moto here, and by `tests/test_outputs_radosgw.py` on a real server."""

from __future__ import annotations

import hashlib
import importlib.util
import re
import socket
import sys
import time
from collections.abc import Iterator
from email.message import Message
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sgld.api.errors import RequestError, UserError
from sgld.server.outputs.s3 import PART_BYTES, S3Outputs, content_disposition
from sgld.server.outputs.store import output_store

KEY = "video_0123/0.mp4"


def _sibling(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(
        f"shared_{name}", Path(__file__).with_name(f"{name}.py")
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


contract = _sibling("test_outputs_store")
made = contract.made


@pytest.fixture(scope="module")
def bucket() -> Iterator[Any]:
    """A moto server with an empty bucket, as `S3Server` of tests/conftest.py describes one."""
    import boto3
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    found = SimpleNamespace(
        endpoint=f"http://{host}:{port}", access_key="ak", secret_key="s" * 40, bucket="results"
    )
    client = boto3.session.Session().client("s3", **_access(found))
    client.create_bucket(Bucket=found.bucket)
    client.close()
    yield found
    server.stop()


def _access(bucket: Any) -> dict[str, Any]:
    return {
        "endpoint_url": bucket.endpoint,
        "region_name": "us-east-1",
        "aws_access_key_id": bucket.access_key,
        "aws_secret_access_key": bucket.secret_key,
    }


def open_store(server: Any, bucket: str = "") -> S3Outputs:
    """A store in the server's own bucket or another one."""
    keys = (server.access_key, server.secret_key)
    return S3Outputs(bucket or server.bucket, server.endpoint, "", *keys)


@pytest.fixture(scope="module")
def store(bucket: Any) -> Iterator[S3Outputs]:
    opened = open_store(bucket)
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def client(bucket: Any) -> Iterator[Any]:
    """A client of its own, to look at what is there."""
    import boto3

    made = boto3.session.Session().client("s3", **_access(bucket))
    yield made
    made.close()


def _keys(client: Any, bucket: Any) -> list[str]:
    found = client.list_objects_v2(Bucket=bucket.bucket)
    return [item["Key"] for item in found.get("Contents", [])]


def _get(url: str, **headers: str) -> httpx.Response:
    return httpx.get(url, headers=headers, trust_env=False, timeout=20)


class TestContract(contract.TestOutputStore):
    """All that holds for a local folder."""


class TestS3:
    """What only S3 does."""

    def test_a_url_downloads_under_its_name(self, store: S3Outputs, made: Path) -> None:
        store.put(KEY, made, "video/mp4")
        url = store.url(KEY, 'Größe "夜"; a/b.mp4', 60)
        assert url is not None
        answer = _get(url)
        assert answer.status_code == 200
        assert answer.content == made.read_bytes()
        assert answer.headers["content-type"] == "video/mp4"
        assert answer.headers["content-disposition"] == (
            'attachment; filename="Gr__e ____ a_b.mp4"; '
            "filename*=UTF-8''Gr%C3%B6%C3%9Fe%20_%E5%A4%9C__%20a_b.mp4"
        )
        part = _get(url, range="bytes=2-4")
        assert (part.status_code, part.content) == (206, b"\x02\x03\x04")
        plain = store.url(KEY)
        assert plain is not None
        assert "content-disposition" not in _get(plain).headers
        store.delete(KEY)
        assert _get(url).status_code in (403, 404)  # servers differ

    def test_a_big_file_goes_in_parts(
        self, store: S3Outputs, client: Any, bucket: Any, tmp_path: Path
    ) -> None:
        path = tmp_path / "big.mp4"
        content = hashlib.shake_128(b"big").digest(1 << 20) * 33 + b"end"
        path.write_bytes(content)
        store.put(KEY, path, "video/mp4")
        head = client.head_object(Bucket=bucket.bucket, Key=KEY)
        assert head["ETag"].strip('"').endswith(f"-{len(content) // PART_BYTES + 1}")
        assert head["ContentType"] == "video/mp4"
        assert store.size(KEY) == len(content)
        url = store.url(KEY, "big.mp4", 60)
        assert url is not None
        assert hashlib.sha256(_get(url).content).digest() == hashlib.sha256(content).digest()
        store.delete(KEY)

    def test_the_check_leaves_nothing(self, store: S3Outputs, client: Any, bucket: Any) -> None:
        store.check()
        assert _keys(client, bucket) == []

    def test_what_others_keep_there_is_left_alone(
        self, store: S3Outputs, client: Any, bucket: Any, made: Path
    ) -> None:
        store.put(KEY, made, "video/mp4")
        assert store.remove_orphans([], time.time() + 1e6, "me") == 0
        assert _keys(client, bucket) == [KEY]
        store.delete(KEY)
        assert store.open_path(KEY) is None

    def test_a_bucket_that_is_not_there(self, bucket: Any, made: Path, tmp_path: Path) -> None:
        store = open_store(bucket, "nothing-here")
        with pytest.raises(UserError, match=r"nothing-here.*NoSuchBucket") as caught:
            store.check()
        assert bucket.endpoint in str(caught.value)
        assert "SGLD_S3_BUCKET_NAME" in caught.value.remedy
        assert bucket.secret_key not in str(caught.value)
        with pytest.raises(RequestError, match="NoSuchBucket") as failed:
            store.put(KEY, made, "video/mp4")
        assert failed.value.code == "output_store_failed"
        store.close()

    def test_by_the_environment(self, bucket: Any, made: Path, tmp_path: Path) -> None:
        environ = {
            "SGLANG_CLOUD_STORAGE_TYPE": "s3",
            "SGLANG_S3_BUCKET_NAME": "another",
            "SGLD_S3_BUCKET_NAME": bucket.bucket,
            "SGLANG_S3_ENDPOINT_URL": bucket.endpoint,
            "SGLD_S3_ACCESS_KEY_ID": bucket.access_key,
            "SGLANG_S3_SECRET_ACCESS_KEY": bucket.secret_key,
        }
        folder = tmp_path / "outputs"
        store = output_store(SimpleNamespace(output_path=str(folder)), environ)
        store.check()
        store.put(KEY, made, "video/mp4")
        assert store.size(KEY) == 2048
        store.delete(KEY)
        store.close()
        assert not folder.exists()


@pytest.fixture
def silent() -> Iterator[str]:
    """The address of a server that takes connections and never says a word."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(64)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


def _at(endpoint: str, timeout: float) -> S3Outputs:
    return S3Outputs("b", endpoint, "", "ak", "sk-of-mine", timeout=timeout)


def test_a_silent_server_is_given_up(silent: str, made: Path) -> None:
    store = _at(silent, 0.6)
    calls: list[Any] = [
        lambda: store.put(KEY, made, "video/mp4"),
        lambda: store.size(KEY),
        lambda: store.delete(KEY),
        lambda: store.read(KEY),
    ]
    for call in calls:
        start = time.monotonic()
        with pytest.raises(RequestError, match=r"timeout|timed out") as caught:
            call()
        # Two attempts of a quarter of a second, up to a second between them.
        assert 0.4 < time.monotonic() - start < 4
        assert caught.value.code == "output_store_failed"
        assert "sk-of-mine" not in str(caught.value)
    store.close()


def test_a_dead_server_is_given_up(made: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{unused.getsockname()[1]}"
    store = _at(endpoint, 12)
    start = time.monotonic()
    with pytest.raises(UserError, match="Could not connect") as caught:
        store.check()
    assert caught.value.code == "output_store_failed"
    with pytest.raises(RequestError, match="Could not connect"):
        store.put(KEY, made, "video/mp4")
    assert time.monotonic() - start < 15
    store.close()


def test_waiting_by_default_ends_in_time() -> None:
    store = S3Outputs("b", "http://127.0.0.1:1", "", "a", "b")
    config = store._client.meta.config
    attempts = config.retries["total_max_attempts"]
    assert attempts * max(config.connect_timeout, config.read_timeout) + attempts - 1 <= 12
    store.close()


@pytest.mark.parametrize(
    ("asked", "given"), [(60, 60), (0, 1), (-5, 1), (0.2, 1), (59.5, 60), (1e9, 604800)]
)
def test_how_long_a_url_lives(asked: float, given: int) -> None:
    store = S3Outputs("b", "http://127.0.0.1:1", "", "a", "b")
    url = store.url(KEY, "", asked)
    assert url is not None
    parts = urlsplit(url)
    assert parse_qs(parts.query)["X-Amz-Expires"] == [str(given)]
    assert (parts.netloc, parts.path) == ("127.0.0.1:1", f"/b/{KEY}")
    store.close()


@given(st.text(max_size=60))
def test_content_disposition_is_one_harmless_header(name: str) -> None:
    header = content_disposition(name)
    assert header.isascii()
    assert not re.search(r"[\x00-\x1f\x7f]", header)
    plain = re.fullmatch(r"attachment; filename=\"([^\"\\/;]*)\"; filename\*=UTF-8''(\S*)", header)
    assert plain is not None
    message = Message()
    message["Content-Disposition"] = f"attachment; filename*=UTF-8''{plain[2]}"
    if name.strip() == name != "" and name.isprintable() and not re.search(r'["\\/;%]', name):
        assert message.get_filename() == name
