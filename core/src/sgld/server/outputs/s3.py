"""`S3Outputs`: results in S3-compatible storage, fetched by clients through presigned URLs.

Needs the extra `sgld-core[s3]` (boto3). Every call ends: a server that is dead or silent is given
up after about `timeout` seconds, and nothing is written to a local folder instead.
"""

from __future__ import annotations

import importlib
import math
import re
import uuid
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlsplit

from sgld.api.errors import RequestError, UserError
from sgld.server.outputs.store import check_key, failed

MIB: Final = 2**20
PART_BYTES: Final = 16 * MIB
"""Size of the parts of a big upload; four are under way at once."""
LONGEST_URL: Final = 7 * 86400
"""Seconds; the signature's own limit."""
DEFAULT_REGION: Final = "us-east-1"
UNSAFE: Final = re.compile(r'[\x00-\x1f\x7f"\\/;%]')
MISSING: Final = ("404", "NoSuchKey", "NotFound")


class S3Outputs:
    """An output store in a bucket; see the module's text.

    Args:
        bucket: must exist; others may use it too.
        endpoint: URL of the server; empty for AWS.
        region: empty for `us-east-1`, or for AWS what its own settings say.
        access_key: empty for the usual AWS sources.
        secret_key: belongs to `access_key`.
        timeout: seconds until a call to a dead or silent server is given up.

    Raises:
        UserError: a setting is missing or wrong, or boto3 is.
    """

    remote = True

    def __init__(
        self,
        bucket: str,
        endpoint: str = "",
        region: str = "",
        access_key: str = "",
        secret_key: str = "",
        *,
        timeout: float = 12.0,
    ) -> None:
        _check_settings(bucket, endpoint, access_key, secret_key)
        self._bucket = bucket
        self._place = f"{endpoint or 'AWS S3'}, bucket {bucket}"
        boto3 = _import("boto3")
        self._errors = _fault_types()
        self._transfer = _import("boto3.s3.transfer").TransferConfig(
            multipart_threshold=PART_BYTES, multipart_chunksize=PART_BYTES, max_concurrency=4
        )
        try:
            # A session of its own: boto3's default one is shared and not safe between threads.
            self._client: Any = boto3.session.Session().client(
                "s3",
                endpoint_url=endpoint or None,
                region_name=region or (DEFAULT_REGION if endpoint else None),
                aws_access_key_id=access_key or None,
                aws_secret_access_key=secret_key or None,
                config=_config(timeout, path_style=bool(endpoint)),
            )
        except self._errors as error:
            raise UserError(
                f"The output store ({self._place}) cannot be set up: {error}", remedy=REMEDY
            ) from error

    def check(self) -> None:
        """Write, read and delete a small object; `UserError` when any of it is refused."""
        key = f"sgld-check/{uuid.uuid4().hex}"
        try:
            with self._doing("be used"):
                self._client.put_object(Bucket=self._bucket, Key=key, Body=b"sgld")
                try:
                    self._client.get_object(Bucket=self._bucket, Key=key)["Body"].read()
                finally:
                    self._client.delete_object(Bucket=self._bucket, Key=key)
        except RequestError as error:
            raise UserError(error.message, code="output_store_failed", remedy=REMEDY) from error

    def put(self, key: str, path: Path, media_type: str, *, flush: bool = True) -> None:
        """Upload the file, in parts when it is big; an upload that fails leaves nothing.

        Raises:
            RequestError: `output_store_failed`.
        """
        check_key(key)
        with self._doing(f"keep {key}"):
            self._client.upload_file(
                str(path),
                self._bucket,
                key,
                ExtraArgs={"ContentType": media_type},
                Config=self._transfer,
            )

    def url(self, key: str, filename: str = "", expires: float = 3600) -> str | None:
        """A presigned URL for `expires` seconds (1 s to 7 days, else the nearer end)."""
        wanted: dict[str, Any] = {"Bucket": self._bucket, "Key": check_key(key)}
        if filename:
            wanted["ResponseContentDisposition"] = content_disposition(filename)
        seconds = min(max(math.ceil(expires), 1), LONGEST_URL)
        with self._doing(f"make a URL of {key}"):
            return self._client.generate_presigned_url("get_object", wanted, ExpiresIn=seconds)

    def open_path(self, key: str) -> Path | None:
        """None: nothing is kept on this machine."""
        check_key(key)
        return None

    def read(self, key: str) -> bytes:
        """The object; `RequestError` (`output_store_failed`) when there is none."""
        check_key(key)
        with self._doing(f"read {key}"):
            return self._client.get_object(Bucket=self._bucket, Key=key)["Body"].read()

    def size(self, key: str) -> int | None:
        """Bytes of the object, or None when there is none."""
        check_key(key)
        with self._doing(f"look at {key}"):
            try:
                return int(self._client.head_object(Bucket=self._bucket, Key=key)["ContentLength"])
            except self._client.exceptions.ClientError as error:
                if error.response.get("Error", {}).get("Code") in MISSING:
                    return None
                raise

    def delete(self, key: str) -> None:
        """Delete the object; nothing happens when it is not there."""
        check_key(key)
        with self._doing(f"delete {key}"):
            self._client.delete_object(Bucket=self._bucket, Key=key)

    def remove_orphans(self, job_ids: Collection[str], before: float, owner: str) -> int:
        """Nothing: a bucket may be shared, and what this server does not know may be another's."""
        return 0

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    @contextmanager
    def _doing(self, doing: str) -> Iterator[None]:
        try:
            yield
        except self._errors as error:
            raise failed(f"{doing} ({self._place})", error) from error


REMEDY: Final = (
    "Check SGLD_S3_BUCKET_NAME, SGLD_S3_ENDPOINT_URL, SGLD_S3_REGION_NAME, "
    "SGLD_S3_ACCESS_KEY_ID and SGLD_S3_SECRET_ACCESS_KEY."
)


def content_disposition(filename: str) -> str:
    """The header that saves a download as `filename`, in plain letters for old clients and in
    UTF-8 for all others; what could end or change the header is replaced by `_`."""
    name = UNSAFE.sub("_", filename)
    plain = name.encode("ascii", "replace").decode("ascii").replace("?", "_")
    encoded = quote(name.encode("utf-8", "replace"), safe="")
    return f"attachment; filename=\"{plain}\"; filename*=UTF-8''{encoded}"


def _check_settings(bucket: str, endpoint: str, access_key: str, secret_key: str) -> None:
    if not bucket:
        raise UserError(
            "SGLD_CLOUD_STORAGE_TYPE is s3, but no bucket is named.",
            remedy="Set SGLD_S3_BUCKET_NAME.",
        )
    if endpoint:
        try:
            parts = urlsplit(endpoint)
            fits = parts.scheme in ("http", "https") and bool(parts.hostname)
        except ValueError:
            fits = False
        if not fits:
            raise UserError(
                f"SGLD_S3_ENDPOINT_URL={endpoint!r} is no address of a server.",
                remedy="Use https://HOST or http://HOST:PORT.",
            )
    if bool(access_key) != bool(secret_key):
        given, other = ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY")
        if secret_key:
            given, other = other, given
        raise UserError(f"SGLD_S3_{given} is set alone.", remedy=f"Set SGLD_S3_{other} too.")


def _import(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise UserError(
            "S3 storage needs the boto3 package.", remedy="Run: pip install sgld-core[s3]"
        ) from error


def _fault_types() -> tuple[type[BaseException], ...]:
    """Everything that a call may raise for want of a network, a right, a file or a good name."""
    found: Callable[[str], Any] = _import
    boto_core = found("botocore.exceptions")
    boto = found("boto3.exceptions")
    return (boto_core.BotoCoreError, boto_core.ClientError, boto.Boto3Error, OSError, ValueError)


def _config(timeout: float, *, path_style: bool) -> Any:
    return _import("botocore.config").Config(
        signature_version="s3v4",
        connect_timeout=timeout / 4,
        read_timeout=timeout * 5 / 12,
        # Two attempts: one lost connection is no failure, and both end within `timeout`.
        retries={"mode": "standard", "total_max_attempts": 2},
        # Other servers than AWS have no host name for each bucket ...
        s3={"addressing_style": "path" if path_style else "auto"},
        # ... and older ones do not know the newer checksums.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
    )
