"""A new plugin as a whole distribution: `sgld plugins new KIND NAME`.

    project = Project.of("pipeline", "acme-video", author="Ann Other <ann@example.org>")
    project.check(catalog)          refuses names that are taken here
    folder = project.write(Path("."))

The templates lie in `template/`: `common/` and one folder per kind, each file with `.txt` behind
its name so that no tool takes it for a part of sgld, and `_` for a leading dot. They are a plugin
called `acme-toy`; its name, in each of its spellings, is what gets replaced. Imports no torch.
"""

from __future__ import annotations

import json
import keyword
import os
import re
import shutil
import sys
import tempfile
import unicodedata
from collections.abc import Iterator, Mapping
from importlib import resources
from importlib.resources.abc import Traversable
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from shlex import quote
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from packaging.version import Version

from sgld import __version__
from sgld.api.contracts import CONTRACTS
from sgld.api.errors import ParameterError, Problem, UserError
from sgld.plugins.find import NAME_PATTERN
from sgld.plugins.known import GENERIC, KNOWN

if TYPE_CHECKING:
    from sgld.plugins.catalog import Catalog

KINDS: Final[Mapping[str, str]] = {
    "pipeline": "A toy that paints from text",
    "realtime": "A toy world that is steered while it is made",
    "attention": "Attention that reads its keys in blocks",
    "kernel": "A gated residual addition",
    "platform": "A device family that computes on the CPU",
    "cache": "A cache policy that thins out the past",
    "model": "A toy world that comes with its weights",
}
"""What can be written, and the summary of each."""
LICENCES: Final = ("Apache-2.0", "BSD-3-Clause", "MIT")
LONGEST: Final = 32
"""Characters of a name; longer ones make lines of code that no formatter can break well."""
RESERVED: Final = frozenset({"all", "auto", "builtin", "reference", "torch", "cpu", "cuda"})
"""Words that mean something else where a plugin's name may stand."""
TOY_NAMES: Final = frozenset({"toy", "toy-image", "toy-edit", "toy-video", "toy-world"})
"""What `sgld.testing.toy_plugin` brings; the commands of five kinds serve one of them."""
CLASHES: Final[Mapping[str, str]] = {
    "plugin": "a module of every project is called so.",
    "src": "the folder that packages lie in is called so.",
    **dict.fromkeys(("test", "tests"), "folders of tests are called so, and Python imports those."),
    **dict.fromkeys(("build", "dist"), "tools put there what they build."),
    **dict.fromkeys(TOY_NAMES, "a toy of sgld's own tests is called so."),
}
"""Names that would be mistaken for something else, and for what."""
PREFIX: Final = "acme-"
"""Stands before a suggested name, for the name of the author or of the house."""
AUTHOR: Final = re.compile(r"(?P<name>[^<>@]*[^<>@\s])?\s*(?:<(?P<mail>[^<>\s@]+@[^<>\s@]+)>)?")
TOKEN: Final = re.compile(r"acme-toy|acme_toy|AcmeToy|ACME_TOY|@(?:[a-z]+)@")
SUFFIX: Final = ".txt"
TOYS: Final = "SGLD_EXTERNAL_MODEL_PACKAGE=sgld.testing.toy_plugin"
"""What makes the toy families known, for kinds that bring no model of their own."""


CHECKPOINT: Final = "world"
"""Folder of the package in which a project of kind `model` has its checkpoint."""


class Project(NamedTuple):
    """What is going to be written.

    Args:
        kind: one of `KINDS`.
        name: of the distribution, of the plugin and of the record that it brings.
        author: `NAME <MAIL>`, either part, or empty.
        licence: one of `LICENCES`, for the code.
    """

    kind: str
    name: str
    author: str = ""
    licence: str = LICENCES[0]

    @classmethod
    def of(cls, kind: str, name: str, *, author: str = "", licence: str = LICENCES[0]) -> Self:
        """A checked project.

        Raises ParameterError with everything that is wrong.
        """
        spelled = {known.lower(): known for known in LICENCES}
        licence = spelled.get(licence.strip().lower(), licence)
        project = cls(kind, name, author.strip(), licence)
        if problems := list(project._problems()):
            raise ParameterError(problems)
        return project

    @property
    def package(self) -> str:
        """The name that Python imports."""
        return self.name.replace("-", "_")

    @property
    def stem(self) -> str:
        """What class names begin with."""
        return "".join(word.capitalize() for word in self.name.split("-"))

    def _problems(self) -> Iterator[Problem]:
        if self.kind not in KINDS:
            yield Problem("kind", self.kind, "cannot be written.", f"Kinds: {', '.join(KINDS)}.")
        yield from self._name_problems()
        if self.licence not in LICENCES:
            remedy = f"Choose {', '.join(LICENCES)}, or change LICENSE afterwards."
            yield Problem("license", self.licence, "there is no text of it here.", remedy)
        if self.author and (not self.author.isprintable() or not AUTHOR.fullmatch(self.author)):
            remedy = 'For example --author "Ann Other <ann@example.org>".'
            yield Problem("author", self.author, "is not of the form NAME <MAIL>.", remedy)

    def _name_problems(self) -> Iterator[Problem]:
        name = self.name
        message, remedy = "", f"For example {PREFIX}{name}."
        if not NAME_PATTERN.fullmatch(name):
            message = "a name is lower-case words of letters a to z and digits, joined by '-'."
            if re.match("[0-9]", name):
                message = "a name must begin with a letter a to z."
            remedy = f"For example {_nearest(name)}."
        elif len(name) > LONGEST:
            message = f"has {len(name)} characters; the limit is {LONGEST}."
            remedy = "Choose a shorter one."
        elif name in RESERVED:
            message = "is a reserved word of sgld, which means something else where plugins stand."
        elif name in CLASHES:
            message = f"cannot be told apart: {CLASHES[name]}"
        elif keyword.iskeyword(self.package) or self.package in sys.stdlib_module_names:
            message = f"its package would be {self.package!r}, which Python has for itself."
        elif name in (GENERIC, "sgld", "sgld-core", *(row.dist for row in KNOWN)):
            message = "is a published distribution of sgld."
            remedy = f"For example {PREFIX}{name.removeprefix('sgld-')}."
        elif name.startswith("sgld-"):
            message = "names that begin with 'sgld-' are for what the sgld project publishes."
            remedy = f"For example {PREFIX}{name.removeprefix('sgld-')}."
        if message:
            yield Problem("name", name, message, remedy)

    def check(self, catalog: Catalog) -> None:
        """Refuse a name that somebody has here: a plugin, one of its records, or a package.

        Raises ParameterError naming who has it.
        """
        taken = [
            (f"plugin {row.name} ({row.dist} {row.version}) is installed", row.dist)
            for row in catalog.plugins
            if self.name in (row.name, row.dist)
        ]
        if not taken:
            taken = [
                (f"{kind} {self.name!r} is brought by {entry.dist} {entry.version}", entry.dist)
                for kind in CONTRACTS
                if (entry := catalog.entries[kind].get(self.name)) is not None
            ]
        spec = None if taken else find_spec(self.package)
        if spec is not None and spec.origin is not None:  # without an origin: some folder
            taken = [(f"a package {self.package!r} is installed ({spec.origin})", "")]
        if taken:
            text, dist = taken[0]
            remedy = f"Choose another name, for example {PREFIX}{self.name}"
            remedy += "." if dist == "sgld-core" else ", or uninstall that one."
            raise ParameterError([Problem("name", self.name, f"{text}.", remedy)])

    def files(self) -> dict[PurePosixPath, str]:
        """Every file of the project that is text: path → text. A checkpoint is none."""
        root = resources.files("sgld.testing") / "template"
        texts = {**_read(root / "common"), **_read(root / self.kind)}
        texts[PurePosixPath("LICENSE")] = _text(root / "licences" / f"{self.licence}{SUFFIX}")
        values = self._values()

        def fill(text: str) -> str:
            return TOKEN.sub(lambda found: values.get(found[0], found[0]), text)

        return {PurePosixPath(fill(str(path))): fill(text) for path, text in texts.items()}

    def _values(self) -> dict[str, str]:
        version = Version(__version__)
        following = f"{version.major}.{version.minor + 1}"
        return {
            "acme-toy": self.name,
            "acme_toy": self.package,
            "AcmeToy": self.stem,
            "ACME_TOY": self.package.upper(),
            "@authors@": self._authors(),
            "@core@": f">={version.major}.{version.minor},<{following}",
            "@holder@": (match["name"] if (match := AUTHOR.fullmatch(self.author)) else None)
            or f"the authors of {self.name}",
            "@kind@": self.kind,
            "@licence@": self.licence,
            "@summary@": KINDS[self.kind],
        }

    def _authors(self) -> str:
        match = AUTHOR.fullmatch(self.author)
        given = {} if match is None else {"name": match["name"], "email": match["mail"]}
        # A TOML string may be written as a JSON one.
        parts = [
            f"{key} = {json.dumps(word, ensure_ascii=False)}" for key, word in given.items() if word
        ]
        return f"authors = [{{ {', '.join(parts)} }}]" if parts else "authors = []"

    def write(self, into: Path) -> Path:
        """Write the project into the folder `into/NAME`, all of it or nothing; returns that folder.

        Raises UserError when it is a file or a folder that is not empty, or cannot be written.
        """
        folder = into.expanduser() / self.name
        try:
            if folder.exists() and not folder.is_dir():
                raise UserError(
                    f"into={str(into)!r}: {folder} is a file; the folder would have its name.",
                    code="not_a_folder",
                    remedy="Give another --into, or move it away.",
                )
            if folder.exists() and any(folder.iterdir()):
                raise UserError(
                    f"into={str(into)!r}: {folder} is there already and not empty.",
                    code="folder_not_empty",
                    remedy="Give another --into, or move it away.",
                )
            folder.parent.mkdir(parents=True, exist_ok=True)
            draft = Path(tempfile.mkdtemp(prefix=".sgld-new-", dir=folder.parent))
            try:
                for path, text in self.files().items():
                    (draft / path).parent.mkdir(parents=True, exist_ok=True)
                    (draft / path).write_text(text, encoding="utf-8", newline="\n")
                if self.kind == "model":
                    _write_checkpoint(draft / "src" / self.package / CHECKPOINT)
                draft.chmod(0o777 & ~_umask())
                os.replace(draft, folder)
            finally:
                shutil.rmtree(draft, ignore_errors=True)
        except OSError as error:
            raise UserError(
                f"into={str(into)!r}: {folder} cannot be written ({error.strerror or error}).",
                code="folder_not_writable",
                remedy="Give another --into.",
            ) from None
        return folder

    def commands(self, folder: Path) -> tuple[str, ...]:
        """What to type next: install, test, use."""
        use = {
            "pipeline": f"sgld serve tiny:{self.name}",
            "realtime": f"sgld serve tiny:{self.name}",
            "attention": f"{TOYS} sgld serve tiny:toy-world --attention {self.name}",
            "kernel": f"{TOYS} sgld serve tiny:toy-world",
            "platform": f"{TOYS} sgld serve tiny:toy-image --device {self.name}",
            "cache": f"{TOYS} sgld serve tiny:toy-world --cache-policy {self.name}",
            "model": f"{TOYS} sgld serve {self.name}:{CHECKPOINT}",
        }[self.kind]
        extra = quote(f"{folder}[test]")
        pip = "pip" if find_spec("pip") else "uv pip"  # uv's environments have none
        return (f"{pip} install -e {extra}", f"pytest {quote(str(folder))}", use)


def _write_checkpoint(folder: Path) -> None:
    from sgld.testing import toy_checkpoint  # noqa: PLC0415  (numpy, which other kinds do without)

    toy_checkpoint.write_world(folder)


def _nearest(name: str) -> str:
    """The name that was probably meant, or one like it."""
    plain = unicodedata.normalize("NFKD", name.replace("ß", "ss"))
    plain = plain.encode("ascii", "ignore").decode()  # letters without their accents
    words = re.findall("[a-z0-9]+", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", plain).lower())
    guess = "-".join(words) or "video"
    whole = guess if guess[0].isalpha() and words else PREFIX + guess
    return whole[:LONGEST].rstrip("-")


def _read(folder: Traversable, inside: str = "") -> dict[PurePosixPath, str]:
    """The files of a template, with the names that they will have."""
    found: dict[PurePosixPath, str] = {}
    for entry in folder.iterdir():
        name = f".{entry.name[1:]}" if re.match("_[a-z]", entry.name) else entry.name
        if entry.is_dir():
            found |= _read(entry, f"{inside}{name}/")
        else:
            found[PurePosixPath(f"{inside}{name.removesuffix(SUFFIX)}")] = _text(entry)
    return found


def _text(file: Traversable) -> str:
    return file.read_text(encoding="utf-8")


def _umask() -> int:
    """Asking means setting; a temporary folder is private, a project is not."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
