"""A conformance test may be overridden only with an xfail mark and its reason."""

from __future__ import annotations

import pytest
import torch._dynamo  # noqa: F401  (else a run inside imports triton, which aborts when another does)

pytest_plugins = ["pytester"]

HEAD = """
import pytest
from sgld.testing.conformance import CacheContract

class TestIt(CacheContract):
    policy = "rolling"
"""


CONFTEST = """
import pytest
pytest_plugins = ["sgld.testing.plugin"]
"""


def outcomes(
    pytester: pytest.Pytester, body: str, *flags: str, conftest: str = ""
) -> tuple[dict[str, str], str]:
    """Test → passed, failed, skipped or xfailed; and everything that was said of failures."""
    pytester.makeconftest(CONFTEST + conftest)
    case = pytester.makepyfile(test_case=HEAD + body)
    run = pytester.inline_run(case, "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *flags)
    found: dict[str, str] = {}
    texts: list[str] = []
    for report in run.getreports("pytest_runtest_logreport"):
        test = report.nodeid.rpartition("::")[2]
        word = "xfailed" if hasattr(report, "wasxfail") else report.outcome
        if report.when == "call" or report.outcome != "passed":
            found[test] = word
        if report.failed:
            texts.append(report.longreprtext)
    return found, "\n".join(texts)


def bad(found: dict[str, str]) -> dict[str, str]:
    return {test: word for test, word in found.items() if word != "passed"}


def test_nothing_is_overridden(pytester: pytest.Pytester) -> None:
    found, _ = outcomes(pytester, "")
    assert len(found) == 14
    assert not bad(found)


@pytest.mark.parametrize(
    "body",
    [
        "    def test_sink_is_kept(self): pass",
        "    test_sink_is_kept = None",
        "    @pytest.mark.xfail\n    def test_sink_is_kept(self): raise ValueError",
        "    @pytest.mark.xfail(reason='  ')\n    def test_sink_is_kept(self): raise ValueError",
    ],
    ids=["overridden", "dropped", "without a reason", "with an empty reason"],
)
def test_an_override_without_a_reason_fails(pytester: pytest.Pytester, body: str) -> None:
    found, text = outcomes(pytester, body)
    assert bad(found)["test_nothing_removed"] == "failed"
    assert "TestIt.test_sink_is_kept" in text
    assert "remedy: " in text


def test_an_override_in_between_counts_too(pytester: pytest.Pytester) -> None:
    body = "    def test_sink_is_kept(self): pass\nclass TestOther(TestIt): pass"
    found, text = outcomes(pytester, body)
    assert bad(found) == {"test_nothing_removed": "failed"}
    assert "TestIt.test_sink_is_kept" in text


def test_xfail_with_a_reason_is_the_way_out(pytester: pytest.Pytester) -> None:
    body = """
    @pytest.mark.xfail(reason="the window is part of the sink")
    def test_sink_is_kept(self):
        raise ValueError
"""
    found, _ = outcomes(pytester, body)
    assert bad(found) == {"test_sink_is_kept": "xfailed"}


def test_xfail_that_passes_has_to_go(pytester: pytest.Pytester) -> None:
    body = """
    @pytest.mark.xfail(reason="the window is part of the sink")
    def test_sink_is_kept(self):
        super().test_sink_is_kept()
"""
    found, text = outcomes(pytester, body, "-o", "xfail_strict=false")
    assert bad(found) == {"test_sink_is_kept": "failed"}
    assert "take the xfail mark (the window is part of the sink) away" in text


@pytest.mark.parametrize("mark", ["skip", "skip(reason='slow')", "skipif(True, reason='slow')"])
def test_a_skip_is_no_way_out(pytester: pytest.Pytester, mark: str) -> None:
    body = f"""
    @pytest.mark.{mark}
    def test_sink_is_kept(self):
        super().test_sink_is_kept()
"""
    found, _ = outcomes(pytester, body)
    assert bad(found)["test_nothing_removed"] == "failed"


def test_the_whole_class_cannot_be_skipped(pytester: pytest.Pytester) -> None:
    found, text = outcomes(pytester, "    pytestmark = pytest.mark.skip(reason='slow')")
    assert set(found.values()) == {"failed"}
    assert "xfail(reason=" in text


def test_the_rule_itself_cannot_be_overridden(pytester: pytest.Pytester) -> None:
    pytester.makeconftest('pytest_plugins = ["sgld.testing.plugin"]')
    case = pytester.makepyfile(test_case=HEAD + "    def test_nothing_removed(self): pass")
    run = pytester.inline_run(case, "-q", "-p", "no:cacheprovider", "-p", "no:xdist")
    [report] = [row for row in run.getreports("pytest_collectreport") if row.failed]
    assert "guards the conformance tests" in str(report.longrepr)


def test_a_class_with_an_init_is_found(pytester: pytest.Pytester) -> None:
    """pytest leaves such a class out; the rule names it when it is asked."""
    from sgld.testing.conformance import CacheContract
    from sgld.testing.conformance.base import removals

    class Left(CacheContract):
        policy = "rolling"

        def __init__(self) -> None: ...

    assert any("__init__" in text for text in removals(Left))


@pytest.mark.parametrize(
    ("body", "name"),
    [
        ("    def _policy(self): return None", "_policy"),
        ("    def _room(self, policy): return 0", "_room"),
        ("    def mistold(cls): return ()", "mistold"),
        ("    told = ('entry',)\n    def entry(self): return None", "entry"),
        ("    @pytest.fixture\n    def bench(self): return None", "bench"),
        ("    chunk = 0", "chunk"),
        ("    hides = '  '", "hides"),
    ],
    ids=["helper", "loop", "checks", "list", "fixture", "no frames", "blank reason"],
)
def test_what_tests_rely_on_cannot_be_overridden(
    pytester: pytest.Pytester, body: str, name: str
) -> None:
    found, text = outcomes(pytester, body)
    assert bad(found)["test_nothing_removed"] == "failed"
    assert f"TestIt.{name} belongs to the kit" in text or f"{name}=" in text


def test_a_helper_in_between_counts_too(pytester: pytest.Pytester) -> None:
    body = """
class Mixin:
    def _room(self, policy):
        return 0

class TestOther(Mixin, CacheContract):
    policy = "rolling"
"""
    found, text = outcomes(pytester, body)
    assert bad(found)["test_nothing_removed"] == "failed"
    assert "Mixin._room belongs to the kit" in text


def test_what_is_told_must_leave_something_to_test() -> None:
    from sgld.testing.conformance import AttentionContract, KernelContract
    from sgld.testing.conformance.op_cases import Sizes

    def attention(**attributes: object) -> list[str]:
        return list(type("Told", (AttentionContract,), attributes).mistold())

    assert not attention()
    assert not attention(head_dims=(64,), tolerance=0.05)
    assert attention(head_dims=())
    assert attention(head_dims=(0,))
    assert attention(tolerance=float("inf"))
    assert not list(KernelContract.mistold())
    assert list(type("Told", (KernelContract,), {"sizes": Sizes(0, 2)}).mistold())


def test_an_own_test_and_own_names_are_free(pytester: pytest.Pytester) -> None:
    body = """
    mine = 3

    def test_mine(self):
        assert self.mine == 3
"""
    found, _ = outcomes(pytester, body)
    assert found["test_mine"] == "passed"
    assert not bad(found)


# What stands around the classes.


AUTOUSE = """
@pytest.fixture(autouse=True)
def quiet(request):
    {body}
"""


@pytest.mark.parametrize(
    ("body", "who"),
    [
        ("pytest.skip('not today')", "conftest"),
        ("import unittest; raise unittest.SkipTest('not today')", "a mark or unittest"),
        ("pytest.importorskip('no_such_module')", "conftest"),
        ("pytest.xfail('it never works')", "pytest.xfail()"),
    ],
    ids=["skip", "unittest", "importorskip", "xfail"],
)
def test_a_fixture_that_skips_silences_nothing(
    pytester: pytest.Pytester, body: str, who: str
) -> None:
    own = "    def test_mine(self): pass"
    found, text = outcomes(pytester, own, conftest=AUTOUSE.format(body=body))
    mine = found.pop("test_mine")
    assert set(found.values()) == {"failed"}
    assert "skipped by" in text
    assert who in text
    assert mine in ("skipped", "xfailed"), "an author's own tests are the author's"


def test_a_mark_that_is_made_while_tests_run_does_not_count(pytester: pytest.Pytester) -> None:
    body = "    def test_sink_is_kept(self): raise ValueError('not kept')"
    late = AUTOUSE.format(body="request.applymarker(pytest.mark.xfail(reason='late'))")
    found, text = outcomes(pytester, body, conftest=late)
    assert found["test_sink_is_kept"] == "failed"
    assert "skipped by pytest.xfail()" in text


def test_a_skip_that_the_plugin_raises_is_a_failure(pytester: pytest.Pytester) -> None:
    body = """
import sgld.causal.policies as policies

@pytest.fixture(autouse=True, scope="module")
def broken():
    before = policies.Rolling.drop
    policies.Rolling.drop = lambda *_, **__: pytest.skip("no")
    yield
    policies.Rolling.drop = before
"""
    found, text = outcomes(pytester, body)
    assert "failed" in found.values()
    assert "skipped" not in found.values()
    assert "skipped by test_case" in text


def test_the_skips_of_the_kit_stay(pytester: pytest.Pytester) -> None:
    """A kernel for a device that is not under test."""
    body = """
from sgld.api import KernelSpec, Requires
from sgld.testing.conformance import KernelContract
from sgld.testing.isolated import local_plugin

spec = KernelSpec("mine", "norm.rms", "sgld.ops.norm:rms", requires=Requires(device="xpu"))
made = local_plugin("mine", spec)

class TestKernel(KernelContract):
    plugin = made.__enter__()
    kernel = "mine"

def test_end():
    made.__exit__(None, None, None)
"""
    found, text = outcomes(pytester, body)
    assert "failed" not in found.values(), text
    assert "skipped" in found.values()


SHADOWS = {
    "conftest": ("", "@pytest.fixture\ndef sgld_device(): return 'meta'", "conftest"),
    "module": ("@pytest.fixture\ndef sgld_device(): return 'meta'", "", "test_case"),
    "pytest's": ("", "@pytest.fixture\ndef tmp_path_factory(): return None", "conftest"),
}


@pytest.mark.parametrize("name", SHADOWS)
def test_a_fixture_in_the_place_of_the_kits_is_found(pytester: pytest.Pytester, name: str) -> None:
    module, conftest, where = SHADOWS[name]
    body = f"""
{module}

from sgld.testing.conformance import PipelineContract

class TestToy(PipelineContract):
    pipeline = "toy-image"
    plugin = "sgld.testing.toy_plugin"
"""
    found, text = outcomes(pytester, body, "-k", "test_makes_what", conftest=conftest)
    assert found == {"test_makes_what_it_declares": "failed"}
    assert "a conformance test does not get the kit's own fixtures" in text
    assert f"({where})" in text
    assert "Give yours other names" in text
