"""`OutputStore`: what the server needs of a place for results, and which place the settings mean.

    outputs = output_store(options, os.environ)      # options.output_path, or S3
    outputs.check()                                  # at the start, not at the first job
    outputs.put(output_key(job_id, 0, ".mp4"), path, "video/mp4")

Keys are `<job id>/<index>.<ending>` and made by the server; nothing that a client wrote is in them.
Whatever a place refuses is `RequestError` with the code `output_store_failed`; nothing is ever
written to another place instead.
"""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final, Protocol

from sgld.api.errors import RequestError, UserError

KEY: Final = re.compile(r"([A-Za-z0-9][A-Za-z0-9_-]{0,127})/([0-9]{1,6})\.([a-z0-9]{1,16})")
TYPES: Final = ("local", "s3")
PREFIXES: Final = ("SGLD_", "SGLANG_")


class OutputStore(Protocol):
    """A place for finished files; methods may be called from any thread.

    `remote`: `url` may have to ask somebody, so it is not for an event loop.
    """

    remote: bool

    def check(self) -> None:
        """Write, read and delete something small; `UserError` when the place cannot be used."""
        ...

    def put(self, key: str, path: Path, media_type: str, *, flush: bool = True) -> None:
        """Keep the file at `path` under `key`, whole or not at all; an earlier one is replaced.

        Without `flush` a power cut soon after may take it: that saves a disk's 10 ms.

        The file may be shared with the store afterwards: delete it, but do not write to it.
        """
        ...

    def url(self, key: str, filename: str = "", expires: float = 3600) -> str | None:
        """A URL that anyone can fetch for `expires` seconds and that saves as `filename`; None
        when the server has to send the file itself."""
        ...

    def open_path(self, key: str) -> Path | None:
        """The local file, or None when there is none or the place is not local."""
        ...

    def read(self, key: str) -> bytes:
        """What is kept under `key`, whole: for pictures, not for videos."""
        ...

    def size(self, key: str) -> int | None:
        """Bytes kept under `key`, or None when there is nothing."""
        ...

    def delete(self, key: str) -> None:
        """Delete what is kept under `key`; nothing happens when it is not there."""
        ...

    def remove_orphans(self, job_ids: Collection[str], before: float, owner: str) -> int:
        """Delete files of jobs that are not among `job_ids`, last written before that time (seconds
        since 1970); returns how many. `owner` is the job store's id: a place where other stores
        may keep files too is left alone."""
        ...

    def close(self) -> None:
        """Let go of connections."""
        ...


def output_key(job_id: str, index: int, suffix: str) -> str:
    """The key of an output, `<job id>/<index>.<ending>`; `ValueError` when it would be none."""
    return check_key(f"{job_id}/{index}.{suffix.removeprefix('.')}")


def check_key(key: str) -> str:
    """`key`, if it is one; `ValueError` otherwise, so that nothing else ever names a file."""
    if not KEY.fullmatch(key):
        raise ValueError(f"{key!r} is no key of an output")
    return key


def failed(doing: str, error: BaseException | str) -> RequestError:
    """The error of a place that could not do what it was asked to."""
    said = getattr(error, "strerror", None) or str(error).strip() or type(error).__name__
    return RequestError(
        f"The output store could not {doing}: {said.rstrip('.')}.",
        code="output_store_failed",
        remedy="See the server's log; the output store must be reachable and have space.",
    )


def setting(environ: Mapping[str, str], name: str) -> str:
    """`SGLD_<name>`, otherwise `SGLANG_<name>`, otherwise an empty text; an empty one is unset."""
    for prefix in PREFIXES:
        value = environ.get(prefix + name, "").strip()
        if value:
            return value
    return ""


class OutputOptions(Protocol):
    """The options that matter here; `ServerOptions` has them."""

    @property
    def output_path(self) -> str:
        """Folder for results that stay on this machine."""
        ...


def output_store(options: OutputOptions, environ: Mapping[str, str] = os.environ) -> OutputStore:
    """The place that the settings mean: S3-compatible storage, or the folder `output_path`.

    `SGLD_CLOUD_STORAGE_TYPE` is `s3` or `local` (the default). For S3: `SGLD_S3_BUCKET_NAME`,
    `_ENDPOINT_URL`, `_REGION_NAME`, `_ACCESS_KEY_ID`, `_SECRET_ACCESS_KEY`; each also with the
    prefix `SGLANG_`, which loses. Without keys the usual AWS sources are asked.

    Raises:
        UserError: unknown type, missing or wrong setting, missing package, folder not writable.
    """
    kind = setting(environ, "CLOUD_STORAGE_TYPE").lower() or "local"
    if kind not in TYPES:
        raise UserError(
            f"SGLD_CLOUD_STORAGE_TYPE={kind!r} is unknown.", remedy=f"Use {' or '.join(TYPES)}."
        )
    # Each place is imported only when it is chosen: boto3 is an extra.
    module: Any = importlib.import_module(f"sgld.server.outputs.{kind}")
    if kind == "local":
        return module.LocalOutputs(options.output_path)
    return module.S3Outputs(
        bucket=setting(environ, "S3_BUCKET_NAME"),
        endpoint=setting(environ, "S3_ENDPOINT_URL"),
        region=setting(environ, "S3_REGION_NAME"),
        access_key=setting(environ, "S3_ACCESS_KEY_ID"),
        secret_key=setting(environ, "S3_SECRET_ACCESS_KEY"),
    )
