"""Results in a real S3 server, Ceph's RadosGW: all that holds on moto, and what moto lets pass."""

from __future__ import annotations

import importlib.util
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from sgld.api.errors import RequestError, UserError
from sgld.server.outputs.s3 import S3Outputs
from sgld.server.outputs.store import output_store


def _core_tests(name: str) -> Any:
    path = Path(__file__).parent.parent / "core" / "tests" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"radosgw_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


shared = _core_tests("test_outputs_s3")
store, client, made = shared.store, shared.client, shared.made
KEY = shared.KEY


@pytest.fixture(scope="module")
def bucket(s3_server: Any) -> Any:
    return s3_server


class TestContractOnRadosgw(shared.contract.TestOutputStore):
    """Every test of an output store."""


class TestS3OnRadosgw(shared.TestS3):
    """Every test of the S3 store."""


def _status(url: str | None) -> int:
    assert url is not None
    return httpx.get(url, trust_env=False, timeout=20).status_code


def test_a_url_ends_and_cannot_be_bent(store: S3Outputs, made: Path) -> None:
    store.put(KEY, made, "video/mp4")
    store.put("video_0123/1.mp4", made, "video/mp4")
    short, long = store.url(KEY, "a.mp4", 1), store.url(KEY, "a.mp4", 600)
    assert long is not None
    assert _status(long) == 200
    assert _status(long.replace("0.mp4", "1.mp4")) == 403
    assert _status(long.replace("a.mp4", "b.mp4")) == 403
    assert _status(long.split("?")[0]) == 403
    time.sleep(2.2)
    assert _status(short) == 403
    assert _status(long) == 200
    for index in (0, 1):
        store.delete(f"video_0123/{index}.mp4")


def test_wrong_keys_are_refused_at_the_start(s3_server: Any, tmp_path: Path) -> None:
    options = SimpleNamespace(output_path=str(tmp_path / "outputs"))
    environ = s3_server.environ() | {"SGLD_S3_SECRET_ACCESS_KEY": "wrong-secret"}
    store = output_store(options, environ)
    with pytest.raises(UserError, match="SignatureDoesNotMatch") as caught:
        store.check()
    assert "wrong-secret" not in str(caught.value)
    (tmp_path / "a").write_bytes(b"x" * 20 * 2**20)
    with pytest.raises(RequestError) as failed:
        store.put(KEY, tmp_path / "a", "video/mp4")
    assert failed.value.code == "output_store_failed"
    store.close()
    assert not (tmp_path / "outputs").exists()


def test_an_upload_that_breaks_off_leaves_nothing(client: Any, bucket: Any, tmp_path: Path) -> None:
    """The third part is refused: neither an object nor the first two parts stay."""
    sent: list[int] = []

    def refuse_third(params: dict[str, Any], **_: Any) -> None:
        sent.append(params["PartNumber"])
        if params["PartNumber"] == 3:
            raise OSError(5, "Input/output error")

    store = shared.open_store(bucket)
    store._client.meta.events.register("before-parameter-build.s3.UploadPart", refuse_third)
    (tmp_path / "big").write_bytes(b"x" * 50 * 2**20)
    with pytest.raises(RequestError, match="Input/output error"):
        store.put(KEY, tmp_path / "big", "video/mp4")
    assert 3 in sent
    assert store.size(KEY) is None
    assert client.list_multipart_uploads(Bucket=bucket.bucket).get("Uploads", []) == []
    store.close()
