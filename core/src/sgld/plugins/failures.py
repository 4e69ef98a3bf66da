"""The failure codes: what each means and in which phase it happens. Codes never change meaning."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from sgld.api.specs import Failure


class Code(NamedTuple):
    """The phase in which a failure happens and what it means, one sentence."""

    phase: str
    meaning: str


CODES: Final[Mapping[str, Code]] = {
    "SGLD-P001": Code("import", "The plugin's module does not import, or leaves the process."),
    "SGLD-P002": Code(
        "register", "A hook is unknown, not marked, or asks for an argument it is not given."
    ),
    "SGLD-P003": Code(
        "describe", "A hook raised or returned something that is not a valid record."
    ),
    "SGLD-P004": Code(
        "contract", "A contract version is outside the range of this core, or fits no record."
    ),
    "SGLD-P005": Code("resolve", "Two plugins claim one name or id; neither is used."),
    "SGLD-P006": Code("resolve", "Something is named that is not there; a note only."),
    "SGLD-P007": Code("activate", "A target does not import or is not what the contract says."),
    "SGLD-P008": Code("describe", "A heavy module was imported while describing; a note only."),
    "SGLD-P009": Code("needs", "A plugin that this one needs is not usable."),
    "SGLD-P010": Code("probe", "A platform's probe failed; the reason is kept and shown."),
    "SGLD-P011": Code("worker", "The lock and what the worker finds do not agree."),
    "SGLD-P012": Code("find", "The plugin's name or its entry point is not well formed."),
    "SGLD-P013": Code("find", "The plugin was made for another version of the loader."),
    "SGLD-P014": Code("examine", "The process that examined the plugin crashed or was killed."),
    "SGLD-P015": Code("examine", "Examining the plugin took longer than the time limit."),
    "SGLD-P016": Code("describe", "The plugin describes itself differently when asked again."),
    "SGLD-P017": Code(
        "describe", "Describing the plugin prints, warns or changes the process; a note only."
    ),
    "SGLD-P018": Code("describe", "Importing and describing the plugin takes long; a note only."),
    "SGLD-P019": Code(
        "packages", "A record requires a package that is not installed; a note only."
    ),
    "SGLD-P020": Code("wheel", "What is installed is not what the distribution asks for."),
    "SGLD-P021": Code("choose", "`auto` finds nothing that fits, or two that fit equally well."),
    "SGLD-P022": Code(
        "import", "No bytecode is stored, so every start compiles the plugin; a note only."
    ),
    "SGLD-P023": Code("models", "A model that the plugin carries is not whole, or not served."),
}

NOTES: Final = frozenset(
    {"SGLD-P006", "SGLD-P008", "SGLD-P017", "SGLD-P018", "SGLD-P019", "SGLD-P022"}
)
"""Codes that are shown but leave the plugin in use."""

DOCS: Final = "docs/plugin-errors.md"
"""Where each code has a section with its cause and remedy."""


def section(code: str) -> str:
    """Where the documentation explains a code; empty for a code that it does not know."""
    return f"{DOCS}#{code.lower()}" if code in CODES else ""


def failure(
    code: str,
    plugin: str,
    message: str,
    *,
    dist: str = "",
    version: str = "",
    cause: str = "",
    hint: str = "",
) -> Failure:
    """Make a row for `code`, with the phase that belongs to it."""
    phase = CODES[code].phase
    return Failure(code, plugin, dist, version, phase, message, cause, hint)


def is_fatal(row: Failure) -> bool:
    """Whether the row means that something cannot be used (a note does not)."""
    return row.code not in NOTES


def shown(value: object) -> str:
    """`str(value)` on one line, also where foreign code makes that fail."""
    try:
        return " ".join(str(value).split())
    except Exception as error:
        return f"(its text cannot be shown: {type(error).__name__})"


def meant(name: str, names: Iterable[str]) -> str:
    """`Did you mean ...?` with the name that is nearest, or an empty text."""
    from difflib import get_close_matches  # noqa: PLC0415  (only when something is wrong)

    near = get_close_matches(name, sorted(names), n=1)
    return f"Did you mean {near[0]!r}?" if near else ""


def innermost(error: BaseException) -> str:
    """`Type: message` of the deepest cause, with the place where it was raised."""
    seen = {id(error)}
    while True:
        deeper = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        if deeper is None or id(deeper) in seen:
            break
        seen.add(id(deeper))
        error = deeper
    text = f"{type(error).__name__}: {shown(error)}".rstrip(": ")
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None or trace.tb_frame.f_code.co_filename.startswith("<"):
        return text
    return f"{text} ({trace.tb_frame.f_code.co_filename}:{trace.tb_lineno})"
