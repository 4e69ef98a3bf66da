"""docs/server.md is run: every command against real servers, every example of OpenAI's client.

The page is read in order. A port stands for a server: the first `sgld serve ... --port N` starts it
on a free port, and `localhost:N` means it from then on. Other `sgld serve` lines are only checked
with `--print-config`. `<!-- answers 400 -->` above a block says which error its last line answers.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from PIL import Image

from sgld.cli.main import main
from sgld.testing.served import Served, served_apart, served_here, wait_for

pytestmark = [
    pytest.mark.multi_process,
    pytest.mark.skipif(
        shutil.which("curl") is None and not os.environ.get("SGLD_TEST_REQUIRE_ALL"),
        reason="curl is not installed",
    ),
]
DOCS = Path(__file__).parents[1] / "docs"
PAGE = DOCS / "server.md"
HUB = {
    "Wan-AI/Wan2.1-T2V-1.3B-Diffusers": "tiny:wan-t2v",
    "black-forest-labs/FLUX.1-schnell": "tiny:flux.1-schnell",
}
CURL = "curl -sS --fail-with-body --noproxy '*' --max-time 60"


class Step(NamedTuple):
    """A command or an example, the line of the page where its block begins, and what it answers."""

    line: int
    language: str
    text: str
    status: int

    @property
    def id(self) -> str:
        return f"{self.line}:{self.text.split(chr(10))[0][:50]}"


def steps() -> list[Step]:
    found: list[Step] = []
    text = PAGE.read_text(encoding="utf-8")
    pattern = r"(?:<!-- answers (\d+) -->\n)?^```(console|bash|python)\n(.*?)^```"
    for match in re.finditer(pattern, text, re.DOTALL | re.MULTILINE):
        line, language = text.count("\n", 0, match.start()) + 1, match[2]
        lines = [match[3]] if language == "python" else match[3].strip().splitlines()
        found += [Step(line, language, one, int(match[1] or 200)) for one in lines]
    return found


STEPS = steps()


class Servers:
    """The servers that the page has started, and the ids that it speaks of."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder, self.names, self.space = folder, {}, {}
        self._stack = stack
        self._started: dict[str, Served] = {}

    def start(self, model: str, port: str) -> bool:
        """Start the server of this port unless it runs; True when it was started now."""
        if port in self._started:
            return False
        folder = self.folder / port
        folder.mkdir()
        if port == "30000":
            made = served_apart(model, folder, ready=False)
        else:  # the same application over a socket, without the seconds of another process
            made = served_here(model, folder)
        self._started[port] = self._stack.enter_context(made)
        return True

    def rewrite(self, text: str) -> str:
        """`text` with the addresses of the real servers, once they are ready."""
        for port in re.findall(r"localhost:(\d+)", text):
            url = self._started[port].url
            health = f"{url}/health"
            wait_for(lambda health=health: _get(health).status_code == 200, health)
            text = text.replace(f"localhost:{port}", url.removeprefix("http://"))
        return text


def _get(url: str) -> httpx.Response:
    return httpx.get(url, trust_env=False, timeout=10)


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    with ExitStack() as stack:
        made = Servers(tmp_path_factory.mktemp("page"), stack)
        Image.new("RGB", (96, 64), "teal").save(made.folder / "photo.png")
        for step in STEPS:
            if (words := _serve_words(step)) and "--port" in words and len(words) == 5:
                made.start(words[2], words[4])
        yield made


def _serve_words(step: Step) -> list[str]:
    """`sgld serve MODEL ...` of a step, without the variables before it."""
    if step.language == "python" or "sgld serve" not in step.text:
        return []
    words = [HUB.get(word, word) for word in shlex.split(step.text)]
    return words[words.index("sgld") :]


@pytest.mark.filterwarnings("ignore:The Sora API:DeprecationWarning")
@pytest.mark.parametrize("step", STEPS, ids=[step.id for step in STEPS])
def test_the_page(
    step: Step,
    servers: Servers,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(servers.folder)
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.setenv(name, "127.0.0.1")
    if words := _serve_words(step):
        # Started by the fixture, or of others' servers (a bucket, a database): the options are
        # read and checked, and nothing is reached.
        words += [] if "--print-config" in words else ["--print-config"]
        assert main(words[1:]) == 0
        assert json.loads(capsys.readouterr().out)["model_path"]["value"] == words[2]
    elif step.language == "python":
        exec(compile(servers.rewrite(step.text), f"server.md:{step.line}", "exec"), servers.space)
        for name in ("client", "pictures"):
            if name in servers.space:
                servers.space.pop(name).close()
    else:
        _curl(step, servers)


def _curl(step: Step, servers: Servers) -> None:
    assert step.text.startswith("curl "), f"neither sgld serve nor curl: {step.text}"
    command = servers.rewrite(step.text).replace("curl", CURL, 1)
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=servers.folder,
        env={**os.environ, **servers.names},
        capture_output=True,
        text=True,
        errors="replace",
        timeout=90,
        check=False,
    )
    assert done.returncode == (0 if step.status == 200 else 22), done.stdout + done.stderr
    if step.status != 200:
        assert json.loads(done.stdout) == _shown_answer(step)
        return
    if "-o " in command:
        file = servers.folder / command.split("-o ")[1].split()[0]
        assert file.stat().st_size > 100
    elif "/events" in command:
        assert re.search(r"^event: done$", done.stdout, re.MULTILINE), done.stdout[-300:]
    elif '"stream": true' in command:
        names = re.findall(r"^event: image_generation.(\w+)$", done.stdout, re.MULTILINE)
        assert names == ["partial_image"] * 2 + ["completed"], done.stdout[-300:]
    elif done.stdout.startswith("{"):
        _remember(json.loads(done.stdout), servers)
    else:
        assert "sgld_" in done.stdout


def _remember(answer: dict[str, Any], servers: Servers) -> None:
    """`$VIDEO` and `$IMAGE` stand for the last id of their kind."""
    made = str(answer.get("id", ""))
    if made.startswith("video_"):
        servers.names["VIDEO"] = made
    elif made.startswith("image_"):
        servers.names["IMAGE"] = made


def _shown_answer(step: Step) -> Any:
    """The JSON that the page shows below a step."""
    text = "\n".join(PAGE.read_text(encoding="utf-8").splitlines()[step.line :])
    found = re.search(r"^```json\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert found
    return json.loads(found[1])


def test_the_tables_are_current() -> None:
    done = subprocess.run(
        [sys.executable, str(DOCS / "generate_server.py"), "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}{done.stderr}\nRun docs/generate_server.py"


def test_every_route_is_on_the_page(servers: Servers) -> None:
    url = servers.rewrite("localhost:30000")
    text = PAGE.read_text(encoding="utf-8")
    for path, operations in _get(f"http://{url}/openapi.json").json()["paths"].items():
        for method in operations:
            assert f"`{method.upper()} {path}`" in text, f"{method} {path}"


def test_every_code_is_on_the_page() -> None:
    text = PAGE.read_text(encoding="utf-8").split("## Errors")[1].split("## ")[0]
    folder = DOCS.parent / "core/src/sgld/server"
    # The codes of realtime sessions are on their own page.
    sources = [path for path in folder.rglob("*.py") if path.parent.name != "realtime"]
    raised = {
        code
        for path in sources
        for code in re.findall(r"\bcode=\"([a-z_]+)\"", path.read_text(encoding="utf-8"))
    }
    inside = {"engine_failed", "warmup_failed", "port_in_use", "invalid_request", "job_taken"}
    missing = sorted(code for code in raised - inside if f"`{code}`" not in text)
    assert not missing
