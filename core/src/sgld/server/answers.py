"""The shape of every JSON answer, for the OpenAPI document; tests hold the routes to it.

Nothing is checked against these classes while serving: routes build plain dicts.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class Answer(BaseModel):
    """Base: an answer has these fields and no other."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=())


class ErrorBody(Answer):
    """What went wrong, in OpenAI's words."""

    message: str = Field(description="For people: every problem, one a line, and what to do.")
    type: Literal[
        "invalid_request_error",
        "authentication_error",
        "permission_error",
        "rate_limit_error",
        "server_error",
    ]
    param: str | None = Field(description="The first field at fault, as the request spells it.")
    code: str = Field(description="For programs: a stable word.")


class ErrorAnswer(Answer):
    """The envelope of every error."""

    error: ErrorBody


class Picture(Answer):
    """One picture; either `url` or `b64_json`, as `response_format` asks."""

    revised_prompt: str | None = Field(description="The prompt really used.")
    seed: int = Field(description="Alone with this seed the picture is the same again.")
    url: str = Field("", description="Where the file is; an absolute address.")
    b64_json: str = Field("", description="The file in base64.")


class Pictures(Answer):
    """Finished pictures, in the order of their seeds."""

    id: str
    created: int = Field(description="Seconds since 1970.")
    data: list[Picture]
    model: str
    size: str = Field(description="Width and height of the files, such as 512x512.")
    output_format: Literal["png", "jpeg", "webp"]
    parameters: dict[str, Any] = Field(description="The parameters really used.")
    inference_time_s: float | None
    timings: dict[str, float] = Field(description="Seconds by stage.")
    warnings: list[str] = Field(description="What was accepted without effect, or adjusted.")


class PartialImage(Answer):
    """Event `image_generation.partial_image` or `image_edit.partial_image` of a stream."""

    type: Literal["image_generation.partial_image", "image_edit.partial_image"]
    b64_json: str = Field(description="What the picture looks like so far, in base64.")
    partial_image_index: int = Field(ge=0)
    created_at: int
    size: str
    quality: Literal["auto"]
    background: Literal["opaque"]
    output_format: Literal["png", "jpeg", "webp"]


class TokenDetails(Answer):
    """Nothing is counted."""

    image_tokens: int
    text_tokens: int


class Usage(Answer):
    """Nothing is counted: always 0."""

    input_tokens: int
    input_tokens_details: TokenDetails
    output_tokens: int
    total_tokens: int


class CompletedImage(Answer):
    """Event `image_generation.completed` or `image_edit.completed`, the last of a stream."""

    type: Literal["image_generation.completed", "image_edit.completed"]
    b64_json: str = Field(description="The file in base64.")
    created_at: int
    size: str
    quality: Literal["auto"]
    background: Literal["opaque"]
    output_format: Literal["png", "jpeg", "webp"]
    usage: Usage
    id: str
    model: str
    seed: int
    parameters: dict[str, Any]
    inference_time_s: float | None
    timings: dict[str, float]
    warnings: list[str]


class VideoOutput(Answer):
    """One file of a video; `index` is its `variant`."""

    index: int
    seed: int
    media_type: str
    bytes: int
    width: int
    height: int
    frames: int
    fps: float
    warnings: list[str]


class JobError(Answer):
    """Why a job failed or was cancelled."""

    code: str
    message: str


class Video(Answer):
    """A video job; times are seconds since 1970."""

    id: str
    object: Literal["video"]
    model: str
    status: Literal["queued", "in_progress", "completed", "failed", "cancelled"]
    progress: int = Field(ge=0, le=100)
    created_at: int
    started_at: int | None
    completed_at: int | None
    expires_at: int | None = Field(description="When it will be deleted.")
    prompt: str | None
    size: str
    seconds: str = Field(description="Length of the clip.")
    num_frames: int
    fps: float
    quality: Literal["standard"]
    remixed_from_video_id: None
    num_outputs: int
    url: str | None
    urls: list[str] | None
    outputs: list[VideoOutput]
    parameters: dict[str, Any] = Field(description="The parameters really used.")
    inference_time_s: float | None
    timings: dict[str, float] | None
    warnings: list[str]
    error: JobError | None


class VideoList(Answer):
    """One page of videos."""

    object: Literal["list"]
    data: list[Video]
    first_id: str | None
    last_id: str | None = Field(description="The next page's `after`.")
    has_more: bool


class VideoDeleted(Answer):
    """The video and its files are gone."""

    id: str
    object: Literal["video.deleted"]
    deleted: Literal[True]
    status: Literal["deleted"]


class ModelCard(Answer):
    """The served model in short."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str = Field(description="The path or hub id that is served.")
    pipeline: str
    plugin: str
    task_type: str
    supported_task_types: list[str]


class ModelList(Answer):
    """The served models: one."""

    object: Literal["list"]
    data: list[ModelCard]


class Parameter(Answer):
    """One parameter: what it must be and what it is otherwise."""

    name: str
    type: str
    rule: str
    unit: str
    sets: list[str]
    required: bool
    default: Any
    minimum: float | None
    maximum: float | None
    choices: list[Any]
    description: str


class ModelDetails(ModelCard):
    """The served model with everything that a request may say."""

    features: list[str]
    components: dict[str, str]
    defaults: dict[str, Any]
    parameters: list[Parameter]
    limits: dict[str, int | None] = Field(description="The server's own limits.")
    realtime: dict[str, Any] | None = Field(
        description="What realtime sessions take; null when the model has none."
    )


class Alive(Answer):
    """The process answers."""

    status: Literal["ok"]


class Generated(Alive):
    """A tiny generation worked."""

    seconds: float


class Unavailable(Answer):
    """Generation requests are not taken now."""

    status: Literal["unavailable"]
    error: str


class ServedPlugin(Answer):
    """An installed plugin."""

    name: str
    distribution: str
    version: str


class EngineFacts(Answer):
    """The engine's process."""

    status: str
    reason: str
    restarts: int
    device_memory: dict[str, int]


class ServerInfo(Answer):
    """What is served, by what, with which options."""

    version: str
    model_path: str
    served_model_name: str
    pipeline: str
    plugins: list[ServedPlugin]
    engine: EngineFacts
    ready: bool
    queued: int
    running: int
    sessions: int = Field(description="Realtime sessions that are open.")
    serving_options: dict[str, Any]
    server_options: dict[str, Any]
