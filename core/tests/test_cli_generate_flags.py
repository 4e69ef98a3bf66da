"""How arguments are sorted before the parser sees them, and what the displays print."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from sgld.api.errors import ParameterError, UserError
from sgld.cli.flags import flag_layer, sort_arguments
from sgld.cli.logs import log_to_stderr
from sgld.cli.progress import LiveReporter, PlainReporter, Reporter, make_reporter
from sgld.messages import Event
from sgld.params.components import alias

KNOWN = {"--num-frames": "value", "-p": "value", "--overwrite": "bool", "--quiet": "switch"}


@pytest.mark.parametrize(
    ("arguments", "plain", "extra"),
    [("--num_frames 5 m", "--num-frames 5 m", []),
     ("--num-frames=5", "--num-frames=5", []), ("--num-frames -5", "--num-frames -5", []),
     ("--num-frames --x", "--num-frames --x", []), ("--num-frames", "--num-frames", []),
     ("-p --x m", "-p --x m", []), ("-p", "-p", []), ("- -5", "- -5", []),
     ("--overwrite m", "--overwrite=true m", []),
     ("--overwrite false m", "--overwrite=false m", []),
     ("--no-overwrite", "--overwrite=false", []), ("--no-overwrite false", "--overwrite=true", []),
     ("--overwrite=x", "--overwrite=x", []), ("--quiet false m", "m", []),
     ("--quiet=TRUE", "--quiet", []), ("--no-quiet m", "m", []),
     ("--new 5 m", "m", [("--new", "5")]), ("--new=5", "", [("--new", "5")]),
     ("--new --quiet", "--quiet", [("--new", "true")]), ("--new -5", "", [("--new", "-5")]),
     ("--new=", "", [("--new", "")]), ("--new", "", [("--new", "true")]),
     ("m -- --new 5", "m -- --new 5", []), ("--a_b.c_d 1", "", [("--a_b.c_d", "1")])],
)  # fmt: skip
def test_sorting(arguments: str, plain: str, extra: list[tuple[str, str]]):
    assert sort_arguments(arguments.split(), KNOWN) == (plain.split(), extra)


@given(st.lists(st.text(max_size=8), max_size=8))
def test_sorting_never_fails_or_loses_plain_words(words: list[str]):
    words = [word for word in words if not word.startswith("-")]
    assert sort_arguments(words, KNOWN) == (words, [])


@given(st.lists(st.sampled_from(["--num-frames", "--quiet", "--x", "--x=", "-p", "5", "--"])))
def test_any_mix_is_sorted(words: list[str]):
    plain, extra = sort_arguments(words, KNOWN)
    assert len(plain) + len(extra) <= len(words)


@pytest.mark.parametrize(
    ("name", "expected"),
    [("--component-path.vae", ("component_paths", {"vae": "v"})),
     ("component_weights_paths.text_encoder", ("component_weights_paths", {"text_encoder": "v"})),
     ("--component-precision.vae", ("component_precisions", {"vae": "v"})),
     ("--text-encoder-path", ("component_paths", {"text_encoder": "v"})),
     ("--vae-weights-path", ("component_weights_paths", {"vae": "v"})),
     ("--component-paths", ("component_paths", "v")), ("model-path", ("model_path", "v")),
     ("--output-path", ("output_path", "v")), ("--modle-path", ("modle_path", "v")),
     ("--image_paths", ("image_paths", "v")), ("--fps", ("fps", "v")), ("a.b", ("a.b", "v"))],
)  # fmt: skip
def test_component_names(name: str, expected: object):
    assert alias(name, "v") == expected


def test_a_flag_layer_keeps_what_was_written():
    extra = [("--vae_path", "x"), ("--component-paths.dit", "y")]
    layer = flag_layer({"fps": "5", "seed": None, "prompt": []}, extra, ["boundary=1", "a = b"])
    assert layer.values == {
        "fps": "5", "component_paths": {"vae": "x", "dit": "y"}, "boundary": "1", "a": " b"
    }  # fmt: skip
    assert layer.spell("boundary") == "--param boundary"
    assert layer.spell("fps") == "--fps"
    assert layer.spell("component_paths") == "--component-paths.dit"
    with pytest.raises(ParameterError, match="is given twice"):
        flag_layer({}, [("--vae-path", "x"), ("--component-path.vae", "y")])


def steps(reporter: Reporter, total: int) -> None:
    for step in range(1, total + 1):
        event = Event("step", "r", stage="denoise", step=step, total=total, seconds=step / 10)
        reporter.event(event, "[1/1]")
    reporter.event(Event("stage", "r", stage="decode", seconds=9), "[1/1]")
    reporter.event(Event("done", "r"), "[1/1]")


@pytest.mark.parametrize(("total", "lines"), [(3, 3), (50, 11), (1000, 11)])
def test_plain_lines_are_few(total: int, lines: int):
    shown: list[str] = []
    steps(PlainReporter(shown.append), total)
    assert shown[-1] == "[1/1] decode took 9.0 s"
    assert shown[-2] == f"[1/1] denoise {total}/{total} {total / 10:.1f} s"
    assert len(shown) == lines + 1


def test_the_reporter_suits_the_stream():
    pipe = Console(file=io.StringIO())
    assert isinstance(make_reporter(pipe, quiet=False, total=1), PlainReporter)
    assert type(make_reporter(pipe, quiet=True, total=1)) is Reporter
    screen = io.StringIO()
    terminal = Console(file=screen, force_terminal=True, width=100, _environ={"TERM": "xterm"})
    with make_reporter(terminal, quiet=False, total=1) as reporter:
        assert isinstance(reporter, LiveReporter)
        reporter.loading("vae", 1_000_000, 2_000_000)
        reporter.loading("vae", 2_000_000, 2_000_000)
        steps(reporter, 5)
        reporter.say("a [note] stays")
    assert "a [note] stays" in screen.getvalue()


def test_results_go_to_standard_output(capsys: pytest.CaptureFixture[str]):
    Reporter().result("out.mp4")
    LiveReporter(Console(file=io.StringIO(), force_terminal=True)).result("out2.mp4")
    assert capsys.readouterr().out == "out.mp4\nout2.mp4\n"


def test_log_lines_go_to_standard_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    import structlog

    try:
        monkeypatch.delenv("SGLD_LOG_LEVEL", raising=False)
        log_to_stderr()
        structlog.get_logger().info("hidden")
        structlog.get_logger().warning("shown")
        monkeypatch.setenv("SGLD_LOG_LEVEL", "loud")
        with pytest.raises(UserError, match="SGLD_LOG_LEVEL='loud'"):
            log_to_stderr()
    finally:
        structlog.reset_defaults()
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "shown" in captured.err
    assert "hidden" not in captured.err
