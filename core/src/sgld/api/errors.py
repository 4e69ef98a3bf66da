"""Every error that sgld raises on purpose, each with a stable `code`.

    SgldError
    ├── UserError            the caller can mend it: exit code 2, HTTP 400, no traceback
    │   ├── ParameterError   one or more request parameters are wrong; lists all of them
    │   ├── ModelError       a model cannot be found, recognised or is incomplete
    │   └── FeatureError     the chosen model, cache or device cannot do what was asked
    ├── PluginError          a plugin is broken and was needed; carries its `Failure`
    ├── DeviceError          the device failed or has too little memory
    └── RequestError         one running request failed; the others go on
        └── Cancelled        it was cancelled; not a fault

`code` is a word for programs, the message is for people; a message says what is wrong, where, and
what to do. Codes never change their meaning.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple


class SgldError(Exception):
    """Base of all errors raised on purpose.

    Args:
        message: what is wrong and where, one sentence.
        code: stable word for programs; each class has a default.
        remedy: what the reader can do about it; shown after the message.
    """

    code = "internal_error"
    exit_code = 1

    def __init__(self, message: str, *, code: str = "", remedy: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy
        if code:
            self.code = code

    def __str__(self) -> str:
        return f"{self.message} {self.remedy}".rstrip() if self.remedy else self.message


class UserError(SgldError):
    """The caller's input is wrong; nothing was started and nothing was written."""

    code = "invalid_request"
    exit_code = 2


class Problem(NamedTuple):
    """One wrong parameter: `field` as the user wrote it, `value` as given, and what to do."""

    field: str
    value: Any
    message: str
    remedy: str = ""
    code: str = "invalid_value"

    def __str__(self) -> str:
        shown = repr(self.value)
        if len(shown) > 120:
            shown = shown[:117] + "..."
        named = self.field if self.value is None else f"{self.field}={shown}"
        return f"{named}: {self.message} {self.remedy}".rstrip()


class ParameterError(UserError):
    """Wrong request parameters; `problems` lists every one, so that one round mends all."""

    code = "invalid_parameter"

    def __init__(self, problems: Sequence[Problem]) -> None:
        if not problems:
            raise ValueError("ParameterError needs at least one problem")
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = tuple(problems)
        if len(problems) == 1:
            self.code = problems[0].code if problems[0].code != "invalid_value" else self.code


class ModelError(UserError):
    """A model path, id or checkpoint cannot be used; codes: `model_not_found`,
    `model_not_recognised`, `model_ambiguous`, `checkpoint_incomplete`, `unsafe_file`."""

    code = "model_error"


class FeatureError(UserError):
    """The chosen model, cache policy, kernel or device does not offer what was asked for."""

    code = "unsupported_feature"


class PluginError(SgldError):
    """A plugin that was needed is broken; `failures` holds the rows with the reasons."""

    code = "plugin_failed"

    def __init__(self, message: str, *, failures: Sequence[Any] = (), remedy: str = "") -> None:
        super().__init__(message, remedy=remedy)
        self.failures = tuple(failures)


class DeviceError(SgldError):
    """The device is missing, failed, or has too little memory (`out_of_memory`)."""

    code = "device_error"


class RequestError(SgldError):
    """One running request failed; its own state is freed and other requests are untouched.

    Codes: `stage_failed`, `non_finite_output`, `out_of_memory`.
    """

    code = "stage_failed"


class Cancelled(RequestError):
    """The request was cancelled by its owner; at most one more step has run."""

    code = "cancelled"
