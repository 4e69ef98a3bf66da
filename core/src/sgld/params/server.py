"""`ServerOptions`: how `sgld serve` listens, what it keeps, whom it lets in and how it stops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import BeforeValidator

from sgld.params.options import Finding, Options, Settled, Text, option
from sgld.params.size import parse_size

LIST: Final = "one text or a list of texts"


def texts(value: Any) -> Any:
    """One text or several as a tuple; anything else as it is, for the field's rule to refuse."""
    if isinstance(value, str):
        return (value,)
    return tuple(value) if isinstance(value, Sequence) else value


def _sizes(value: Any) -> Any:
    for word in texts(value) or ():
        if parse_size(word) == "auto":
            raise ValueError("must be sizes such as 832x480")
    return texts(value)


Texts = Annotated[tuple[str, ...], BeforeValidator(texts), Text(texts)]
Sizes = Annotated[tuple[str, ...], BeforeValidator(_sizes), Text(texts)]


class ServerOptions(Options):
    """How the server runs; every field may be given by flag, variable or file."""

    refused: ClassVar[Mapping[str, str]] = {
        "strict_ports": "The port is never shifted; a busy port is an error.",
        "scheduler_port": "There is no port between server and engine.",
        "webui": "The page of a realtime model is always there, at /.",
    }

    host: str = option("127.0.0.1", "Address to listen on.", rule="text that is not empty")
    open: bool = option(False, "Open the server's page in a browser.")
    port: int = option(30000, "Port to listen on; 0 takes a free one.", ge=0, le=65535)
    served_model_name: str | None = option(
        None, "Name of the model in the API; otherwise --model-id, then the name of its folder."
    )
    api_key: Texts = option((), "Keys that clients must send; several may be given.", rule=LIST)
    cors_origin: Texts = option((), "Web origins that may call from a browser.", rule=LIST)
    state_path: str = option(
        "sgld-state", "Folder for jobs and uploads; made when missing.", min_length=1
    )
    job_store: str | None = option(
        None, "Where jobs are kept: sqlite:///FILE or postgresql://...; a file in state-path else."
    )
    output_path: str = option("outputs", "Folder for results, unless S3 is set.", min_length=1)
    keep_days: float = option(
        7.0, "Delete results this long after they ended; 0 keeps them.", unit="days", ge=0, le=36500
    )
    keep_gib: float = option(
        0.0, "Delete the oldest results beyond this much; 0 sets no limit.", unit="GiB", ge=0,
        le=1e6,
    )  # fmt: skip
    max_queue: int = option(
        256, "Jobs that may wait; further ones are refused with 429.", unit="jobs", ge=1, le=100_000
    )
    max_pixels: int | None = option(
        None, "Upper limit of width x height for every request.", unit="pixels", ge=1, le=10**9
    )
    max_frames: int | None = option(
        None, "Upper limit of frames for every request.", unit="frames", ge=1, le=100_000
    )
    max_body_mib: int = option(
        64, "Largest request body, uploads included.", unit="MiB", ge=1, le=4096
    )
    allow_media_host: Texts = option(
        (), "Hosts, addresses or networks whose pictures may be fetched although they are private.",
        rule=LIST,
    )  # fmt: skip
    session_grace_seconds: float = option(
        30.0, "How long a realtime session outlives its connection; 0 ends it at once.",
        unit="seconds", ge=0, le=86400,
    )  # fmt: skip
    session_init_seconds: float = option(
        60.0, "Close a realtime connection that opens no session for so long.",
        unit="seconds", ge=1, le=86400,
    )  # fmt: skip
    session_idle_seconds: float = option(
        1800.0, "End a realtime session whose client says nothing for so long; 0 never does.",
        unit="seconds", ge=0, le=604_800,
    )  # fmt: skip
    session_message_mib: int = option(
        16, "Largest message of a realtime client, its first frame included.",
        unit="MiB", ge=1, le=1024,
    )  # fmt: skip
    warmup: bool = option(True, "Run a tiny request before the server is ready.")
    warmup_size: Sizes = option((), "Also warm these sizes.", rule="sizes such as 832x480")
    drain_seconds: float = option(
        30.0, "How long a stop waits for what is running.", unit="seconds", ge=0, le=86400
    )
    log_level: Literal["debug", "info", "warning", "error"] = option("info", "What is logged.")
    log_format: Literal["text", "json"] = option("text", "Form of the log.")
    log_requests: bool = option(False, "Log every request at its start and end.")
    log_requests_level: int = option(
        2, "0 ids, 1 parameters, 2 prompts cut short, 3 everything.", ge=0, le=3
    )
    log_requests_format: Literal["text", "json"] = option("text", "Form of the request log.")
    log_requests_target: Texts = option(
        ("stdout",), "Where request lines go: stdout and folders.", rule=LIST
    )
    enable_trace: bool = option(False, "Send OpenTelemetry traces (needs sgld-core[otel]).")
    otlp_endpoint: str | None = option(None, "Where traces are sent (OTLP over HTTP).")
    profile: str | None = option(
        None, "Folder for profiler traces; requests may then ask for one with profile=true."
    )

    @classmethod
    def settle(cls, values: dict[str, Any], given: frozenset[str]) -> Settled:
        """An empty key would let everybody in."""
        keys = values.get("api_key")
        if isinstance(keys, tuple) and any(not str(key).strip() for key in keys):
            return Settled(values, (), (Finding("api_key", "must not be empty."),))
        return Settled(values)

    @property
    def job_store_url(self) -> str:
        """Where jobs are kept, spelled out."""
        return self.job_store or f"sqlite:///{Path(self.state_path).absolute()}/jobs.sqlite3"
