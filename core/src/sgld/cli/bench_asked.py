"""What `sgld bench realtime` was asked: read, merged and checked before anything is started."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from sgld.api.errors import FeatureError, ParameterError, Problem
from sgld.bench.options import BenchOptions
from sgld.bench.own_server import TAKEN
from sgld.cli.flags import flag_layer
from sgld.cli.unnamed import with_model
from sgld.params.merge import Layer, build, distinct, env_layer, split
from sgld.params.nearest import canonical
from sgld.params.server import ServerOptions
from sgld.params.serving import ServingOptions

CLASSES: Final = (BenchOptions, ServerOptions, ServingOptions)

DECIDED: Final[Mapping[str, str]] = {
    **dict.fromkeys(
        ("type", "protocol", "free_running", "max_chunks", "on_full", "acknowledge", "snapshot",
         "resume_token"),
        "Leave it out.",
    ),
    "realtime_output_format": "Use --format.",
    "first_frame": "Use --first-frame.",
    "size": "Use --size.",
}  # fmt: skip
"""Fields of an init message that `--param` cannot set, and what to do."""


class Asked(NamedTuple):
    """What was typed, validated.

    Args:
        bench: what is measured.
        init: fields of the sessions' init message.
        key: API key; empty: none.
        words: arguments for `sgld serve`.
        note: what is to be said of a model that was chosen for the user.
        server: of a server of its own; None with --url.
        serving: decides about its model; None with --url.
    """

    bench: BenchOptions
    init: Mapping[str, Any]
    key: str
    words: Sequence[str] = ()
    note: str = ""
    server: ServerOptions | None = None
    serving: ServingOptions | None = None


def read(
    values: dict[str, Any], extra: list[tuple[str, str]], config: str | None, given: list[str]
) -> Asked:
    """What was typed: flags, unknown flags, the settings file and the words of `--param`.

    Raises ParameterError with everything that is wrong.
    """
    from sgld.params.files import read_config

    flags = flag_layer(values, extra, [])
    own = set(BenchOptions.model_fields)
    if values.get("url"):
        return _running(flags, own, config, given)
    typed = [("--" + name.replace("_", "-"), text) for name, text in values.items() if text]
    refused = [(flag, text) for flag, text in [*typed, *extra] if canonical(flag[2:]) in TAKEN]
    if refused:
        message = "is chosen by the benchmark: its server has a port and folders of its own."
        remedy = "Leave it out, or start `sgld serve` and give its --url."
        raise ParameterError([Problem(flag, text, message, remedy) for flag, text in refused])
    layers = [flags, env_layer((ServerOptions, ServingOptions), os.environ)]
    layers += [read_config(config)] if config is not None else []
    layers, note = with_model(layers)
    built: list[Any] = []
    # The file is the server's too, and does not know the flags of a measurement.
    typed_shares, problems = split(layers[:1], CLASSES)
    shares, unknown = split(layers[1:], CLASSES[1:], also=own)
    problems += unknown
    shares = [[*mine, *more] for mine, more in zip(typed_shares, [[], *shares], strict=True)]
    for cls, share in zip(CLASSES, shares, strict=True):
        try:
            built.append(build(cls, share).params)
        except ParameterError as error:
            problems += error.problems
    init = _init(built[0] if len(built) == len(CLASSES) else None, given, problems)
    if problems:
        raise ParameterError(distinct(problems))
    bench, server, serving = built
    if bench.sessions > serving.max_sessions:
        message = f"is more than --max-sessions {serving.max_sessions}."
        raise ParameterError([Problem("--sessions", bench.sessions, message, "Raise that too.")])
    words = [*_words(values, extra, own), *(["--config", config] if config is not None else [])]
    key = next(iter(server.api_key), "")
    return Asked(bench, init, key, words, note, server, serving)


def _running(flags: Layer, own: set[str], config: str | None, given: list[str]) -> Asked:
    """What is asked of a server that runs already: nothing that it has decided."""
    ours = flags._replace(values={n: v for n, v in flags.values.items() if n in own})
    others = [n for n, v in flags.values.items() if n not in {*own, "api_key"} and v is not None]
    problems = [
        Problem(
            "MODEL" if name == "model_path" else flags.spell(name),
            flags.values[name],
            "has no effect on the server that runs at --url.",
            "Leave it out, or leave --url out.",
        )
        for name in others
    ]
    if config is not None:
        message = "has no effect on the server that runs at --url."
        problems.append(Problem("--config", config, message, "Leave it out."))
    bench = None
    try:
        bench = build(BenchOptions, [ours]).params
    except ParameterError as error:
        problems += error.problems
    init = _init(bench, given, problems)
    if problems or bench is None:
        raise ParameterError(distinct(problems))
    key = flags.values.get("api_key") or os.environ.get("SGLD_API_KEY", "")
    return Asked(bench, init, str(key))


def _words(
    values: Mapping[str, Any], extra: Sequence[tuple[str, str]], own: set[str]
) -> Iterator[str]:
    """What was typed for the server, as it was typed."""
    for name, value in values.items():
        if name not in own and value not in (None, []):
            flag = "--" + name.replace("_", "-")
            yield from (f"{flag}={one}" for one in (value if isinstance(value, list) else [value]))
    yield from (f"{written}={text}" for written, text in extra)


def _init(
    bench: BenchOptions | None, given: Sequence[str], problems: list[Problem]
) -> dict[str, Any]:
    """Fields of the init message: `--param`, `--size` and `--first-frame`."""
    import msgpack

    from sgld.params.files import read_value

    init: dict[str, Any] = {}
    for word in given:
        name, equals, text = word.partition("=")
        name = name.strip()
        if not equals or not name:
            problems.append(Problem("--param", word, "must be NAME=VALUE."))
        elif name in DECIDED:
            message, remedy = "is decided by the benchmark.", DECIDED[name]
            problems.append(Problem(f"--param {name}", text, message, remedy))
        elif name in init:
            problems.append(Problem(f"--param {name}", text, "is given twice.", "Give it once."))
        else:
            init[name] = read_value(text)
            try:
                msgpack.packb(init[name])
            except (TypeError, ValueError, OverflowError) as error:
                message = f"cannot be sent in a message: {error}."
                problems.append(Problem(f"--param {name}", text, message))
    if bench is not None and bench.size is not None:
        init["size"] = bench.size
    if bench is not None and bench.first_frame is not None:
        try:
            init["first_frame"] = Path(bench.first_frame).read_bytes()
        except OSError as error:
            message = f"cannot be read: {error.strerror}."
            problems.append(Problem("--first-frame", bench.first_frame, message))
    return init


def platform_of(asked: Asked) -> str:
    """What the model will run on, such as `cpu`.

    Decided as `sgld serve` decides, and the init message is read as a server reads it, so that what
    would be refused there is refused here in the same words, before anything is started.

    Raises:
        FeatureError: a model without sessions.
        SgldError: whatever `make_plan` and `read_init` raise.
    """
    from sgld.bench.model_facts import init_of
    from sgld.plan import make_plan
    from sgld.server.bodies import Limits
    from sgld.server.parameters import ModelFacts
    from sgld.server.realtime.model import capabilities, realtime_model
    from sgld.server.realtime.opening import read_init

    assert asked.serving is not None
    assert asked.server is not None
    plan = make_plan(asked.serving, isolate=True)
    try:
        facts = ModelFacts.of(plan, plan.files.name)
        model = realtime_model(plan, facts, Limits.of(asked.server))
        if model is None:
            raise FeatureError(
                f"{asked.serving.model_path}: pipeline {plan.spec.id} has no realtime sessions.",
                remedy="Name a realtime model, such as tiny:lingbot-world.",
            )
        init = init_of({"realtime": capabilities(model)}, asked.init)
        try:
            read_init({"type": "init", "protocol": 2, **init}, model)
        except ParameterError as error:
            raise ParameterError([_respelled(problem) for problem in error.problems]) from None
        return str(plan.lock.summary()["platform"])
    finally:
        plan.close()


def _respelled(problem: Problem) -> Problem:
    """A problem of the init message under the flag that wrote it."""
    own = {"size": "--size", "first_frame": "--first-frame"}
    field = own.get(problem.field, f"--param {problem.field}")
    return problem._replace(field=field)
