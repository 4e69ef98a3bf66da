"""A model path or hub id → `ModelFiles`. Torch-free; huggingface_hub is imported on first use.

    files = resolve("acme/tiny")                 # hub id, or "./folder", or "weights.safetensors"
    check_complete(files)                        # names the component and the missing file

A local path wins over a hub id. In offline mode nothing is ever asked of the network.
"""

from __future__ import annotations

import difflib
import os
import re
from pathlib import Path
from typing import Any, Final, NoReturn

from sgld.api.errors import ModelError, ParameterError, Problem
from sgld.weights.complete import check_complete
from sgld.weights.files import ModelFiles, is_offline

__all__ = ["ModelFiles", "check_complete", "is_offline", "resolve"]

REPO_ID: Final = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
SNAPSHOT: Final = re.compile(r".*/models--([^/]+?)--([^/]+)/snapshots/([^/]+)/?")
PICKLE_SUFFIXES: Final = (".bin", ".pt", ".pth", ".ckpt")

NOT_NEEDED: Final = ("*.msgpack", "*.h5", "*.ot", "*.onnx", "*.onnx_data", "*.tflite", "openvino*")
"""Weights of other frameworks, which often lie beside ours and are as large."""


def resolve(
    model_path: str, *, revision: str | None = None, model_id: str | None = None
) -> ModelFiles:
    """Find the files of `model_path`: a folder, one `.safetensors` file, or a hub id `org/name`.

    Args:
        model_path: as the user wrote it; `~`, `./`, trailing slashes and symlinks are fine.
        revision: branch, tag or commit of a hub id.
        model_id: hub id the files are to be taken for (a renamed or converted copy).

    Raises:
        ModelError: `model_not_found` or `unsafe_file`.
        ParameterError: a revision of a local path.
    """
    spelled = model_path.strip()
    if not spelled or "\0" in spelled:
        _not_found(model_path, "no model was named.", "Give a folder or a hub id `org/name`.")
    local = Path(os.path.expanduser(spelled)).absolute()
    if revision is not None and os.path.exists(local):
        message = f"{spelled!r} is on this machine, where it has no revisions."
        raise ParameterError([Problem("revision", revision, message, "Leave it out.")])
    if os.path.isdir(local):
        return _folder(local, model_id=model_id)
    if os.path.isfile(local):
        return _file(spelled, local, model_id=model_id)
    if os.path.lexists(local):
        target = os.path.realpath(local)
        _not_found(spelled, f"is a broken link to {target}.", "Mend the link or give its target.")
    if _is_repo_id(spelled):
        return _hub(spelled, revision=revision, model_id=model_id)
    _not_found(spelled, "no such file or folder, and not a hub id `org/name`.", _near(local))


def _name(local: Path) -> str:
    # normpath drops trailing "/", "//" and "/."; the root folder alone has no last part.
    return os.path.basename(os.path.normpath(local)) or "model"


def _folder(local: Path, *, model_id: str | None) -> ModelFiles:
    if not os.access(local, os.R_OK | os.X_OK):
        _not_found(str(local), "the folder may not be read.", "Check its permissions.")
    snapshot = SNAPSHOT.fullmatch(local.as_posix())
    if snapshot is None:
        return ModelFiles(local, _name(local), model_id)
    organisation, repository, commit = snapshot.groups()
    repo_id = model_id or f"{organisation}/{repository}"
    return ModelFiles(local, _name(local), repo_id, commit, origin="hub")


def _file(spelled: str, local: Path, *, model_id: str | None) -> ModelFiles:
    if local.suffix == ".safetensors":
        return ModelFiles(local.parent, _name(local), model_id, file=local)
    if local.suffix in PICKLE_SUFFIXES:
        raise ModelError(
            f"model_path={spelled!r}: a {local.suffix} file can run code when it is opened.",
            code="unsafe_file",
            remedy="Convert it to .safetensors, or put it in a model folder and pass "
            "`--allow-pickle` if you trust it.",
        )
    _not_found(
        spelled, "is a file, but not a .safetensors file.", "Give a folder or a .safetensors file."
    )


def _is_repo_id(text: str) -> bool:
    # The hub's own rule, so that a typing error in a path does not become a network request.
    fits = REPO_ID.fullmatch(text) is not None and len(text) <= 96
    return fits and ".." not in text and "--" not in text and not text.endswith((".git", ".", "-"))


def _hub(repo_id: str, *, revision: str | None, model_id: str | None) -> ModelFiles:
    import huggingface_hub  # noqa: PLC0415 - half a second that a local folder need not pay
    from huggingface_hub import constants  # noqa: PLC0415

    offline = is_offline() or constants.HF_HUB_OFFLINE
    try:
        folder = huggingface_hub.snapshot_download(
            repo_id,
            revision=revision,
            local_files_only=offline,
            ignore_patterns=list(NOT_NEEDED),
        )
    except Exception as error:  # every fault of the network or cache must reach the user as words
        partial = getattr(error, "snapshot_path", None)
        if partial is None:
            _hub_failed(repo_id, revision, offline, error)
        # A snapshot without, say, its README still serves; `check_complete` is the judge.
        folder = partial
    commit = Path(folder).name
    return ModelFiles(
        Path(folder), repo_id.rsplit("/", 1)[1], model_id or repo_id, commit, origin="hub"
    )


def _hub_failed(repo_id: str, revision: str | None, offline: bool, error: Exception) -> NoReturn:
    from huggingface_hub import constants, errors  # noqa: PLC0415

    wanted = f"revision {revision!r}" if revision else "its default revision"
    cache = Path(constants.HF_HUB_CACHE)
    command = f"hf download {repo_id}" + (f" --revision {revision}" if revision else "")
    if offline:
        known = _cached_revisions(cache, repo_id)
        what = f"offline mode is on (HF_HUB_OFFLINE) and {wanted} is not in the cache {cache}"
        what += f"; cached revisions: {', '.join(known)}." if known else "."
        remedy = f"Run `{command}` while online, unset HF_HUB_OFFLINE, or give a local folder."
    elif isinstance(error, errors.GatedRepoError):
        what = "access to this hub repository is restricted."
        remedy = "Ask for access on its page, then log in with `hf auth login`."
    elif isinstance(error, errors.RepositoryNotFoundError):
        what = "no such local folder, and the hub has no repository of this name (or it is private)"
        what += "."
        remedy = "Check the spelling; for a private one log in with `hf auth login`."
    elif isinstance(error, errors.RevisionNotFoundError):
        what, remedy = f"the hub repository has no {wanted}.", "Check `--revision`."
    else:
        what = f"no such local folder, and the hub did not deliver it: {_first_line(error)}"
        remedy = f"Check the connection and the free disk space; try `{command}`."
    raise ModelError(
        f"model_path={repo_id!r}: {what}", code="model_not_found", remedy=remedy
    ) from error


def _cached_revisions(cache: Path, repo_id: str) -> list[str]:
    folder = cache / f"models--{repo_id.replace('/', '--')}"
    names = (path.name for part in ("refs", "snapshots") for path in folder.glob(f"{part}/*"))
    return sorted(names)[:8]


def _first_line(error: Exception) -> str:
    lines: list[Any] = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]}".rstrip(": ")


def _near(local: Path) -> str:
    try:
        names = [path.name for path in local.parent.iterdir()]
    except OSError:
        return f"The folder {local.parent} does not exist or may not be read either."
    close = difflib.get_close_matches(local.name, names, n=3)
    if close:
        return f"Did you mean {', '.join(repr(str(local.parent / name)) for name in close)}?"
    return "Check the spelling; a relative path starts at the current folder."


def _not_found(spelled: str, what: str, remedy: str) -> NoReturn:
    raise ModelError(f"model_path={spelled!r}: {what}", code="model_not_found", remedy=remedy)
