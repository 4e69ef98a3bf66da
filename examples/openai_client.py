"""Drive a running `sgld serve` with OpenAI's own client.

    sgld serve tiny:wan-t2v --port 30000
    python examples/openai_client.py --base-url http://127.0.0.1:30000/v1

What the server can do decides which parts run: pictures for an image model, videos for a video
model, and image-to-video when an input picture is asked for.
"""

from __future__ import annotations

import argparse
import base64
import io
import time
import warnings
from pathlib import Path
from typing import Any

from openai import BadRequestError, OpenAI


def main() -> None:
    """Ask what is served, use it, and show what an error looks like."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--base-url", default="http://127.0.0.1:30000/v1")
    parser.add_argument("--api-key", default="none")
    parser.add_argument("--image", type=Path, help="input picture for image-to-video or edits")
    parser.add_argument("--output", type=Path, default=Path("outputs"))
    options = parser.parse_args()

    # The client tells of OpenAI's plans for its own service; they do not touch this one.
    warnings.filterwarnings("ignore", message="The Sora API", category=DeprecationWarning)
    client = OpenAI(base_url=options.base_url, api_key=options.api_key)
    model = client.models.list().data[0]
    tasks: list[str] = model.model_dump()["supported_task_types"]
    print(f"{model.id}: {', '.join(tasks)}")
    options.output.mkdir(parents=True, exist_ok=True)
    if any(task.endswith("-to-video") for task in tasks):
        make_video(client, model.id, options)
    else:
        make_picture(client, model.id, options)
        if options.image is not None:
            edit_picture(client, model.id, options)
    show_error(client, model.id)


def make_picture(client: OpenAI, model: str, options: argparse.Namespace) -> None:
    """Two pictures of one prompt, as data in the answer."""
    answer = client.images.generate(
        model=model, prompt="a lamp on a desk", n=2, response_format="b64_json"
    )
    for number, item in enumerate(answer.data or []):
        path = options.output / f"lamp-{number}.png"
        path.write_bytes(base64.b64decode(item.b64_json or ""))
        print(f"wrote {path}, seed {item.model_dump()['seed']}")


def edit_picture(client: OpenAI, model: str, options: argparse.Namespace) -> None:
    """A picture made from another one."""
    answer = client.images.edit(
        model=model, prompt="add a kite", image=options.image, response_format="b64_json"
    )
    for item in answer.data or []:
        path = options.output / "edited.png"
        path.write_bytes(base64.b64decode(item.b64_json or ""))
        print(f"wrote {path}")


def make_video(client: OpenAI, model: str, options: argparse.Namespace) -> None:
    """Queue a video, follow it, download it, delete it."""
    more: dict[str, Any] = {}
    if options.image is not None:
        more["input_reference"] = (options.image.name, io.BytesIO(options.image.read_bytes()))
    video = client.videos.create(model=model, prompt="a red kite over the sea", **more)
    while video.status in ("queued", "in_progress"):
        print(f"{video.status} {video.progress} %")
        time.sleep(0.5)
        video = client.videos.retrieve(video.id)
    if video.status != "completed":
        raise SystemExit(f"the video is {video.status}: {video.error}")
    path = options.output / f"{video.id}.mp4"
    client.videos.download_content(video.id).write_to_file(path)
    print(f"wrote {path}: {video.size}, {video.seconds} s")
    client.videos.delete(video.id)


def show_error(client: OpenAI, model: str) -> None:
    """A wrong parameter raises, and the error names it."""
    try:
        client.post(
            "/videos",
            body={"model": model, "prompt": "x", "num_inference_steps": 0},
            cast_to=object,
        )
    except BadRequestError as error:  # a picture server refuses the task, which is no parameter
        print(f"refused as it should be: {error.param or error.code}: {error.message}")


if __name__ == "__main__":
    main()
