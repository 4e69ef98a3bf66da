"""Finding plugins: reading metadata, names, allow and deny lists, external packages."""

from __future__ import annotations

import zipfile
from importlib import metadata
from pathlib import Path

import pytest

from sgld.plugins.find import Discovery, find
from sgld.plugins.scan import parse_entry_points, scan, version_of

V1 = "sgld.plugins.v1"


def install(
    folder: Path,
    dist: str,
    name: str = "",
    value: str = "",
    *,
    version: str = "1.0",
    group: str = V1,
    needs: str = "",
    text: str = "",
) -> None:
    """Write the metadata of a distribution as an installer does."""
    info = folder / f"{dist.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    lines = ["Metadata-Version: 2.1", f"Name: {dist}", f"Version: {version}"]
    lines += [f"Requires-Dist: {needs}"] if needs else []
    (info / "METADATA").write_text("\n".join(lines) + "\n\nVersion: 9 in the description\n")
    (info / "entry_points.txt").write_text(text or f"[{group}]\n{name} = {value}\n")


def names(discovery: Discovery) -> list[str]:
    return [row.name for row in discovery.found]


def codes(discovery: Discovery) -> list[str]:
    return [row.code for row in discovery.failures]


def test_scan_reads_what_an_installer_wrote(tmp_path: Path) -> None:
    install(tmp_path, "acme-sgld", "acme", "acme.plugin", needs="SGLD_Core[x] (>=0.1,<2) ; a=='b'")
    install(tmp_path, "other", text="[console_scripts]\nx = y:z\n")
    (row,) = scan([str(tmp_path)])
    assert row == ("acme-sgld", "1.0", ">=0.1,<2", V1, "acme", "acme.plugin")
    assert version_of("Acme_SGLD", [str(tmp_path)]) == "1.0"
    assert version_of("missing", [str(tmp_path)]) == ""


def test_scan_agrees_with_importlib_metadata_on_this_environment() -> None:
    """Editable installs included: this workspace is one."""
    fast = {(row.dist, row.version, row.name, row.value) for row in scan() if row.group == V1}
    slow = {
        (entry.dist.name, entry.dist.version, entry.name, entry.value)
        for entry in metadata.entry_points(group=V1)
        if entry.dist is not None
    }
    assert fast == slow
    assert any(row[0] == "sgld-core" for row in fast)


def test_the_first_distribution_of_a_name_on_the_path_counts(tmp_path: Path) -> None:
    install(tmp_path / "a", "acme", "acme", "new.plugin", version="2.0")
    install(tmp_path / "b", "acme", "acme", "old.plugin", version="1.0")
    assert [row.version for row in scan([str(tmp_path / "a"), str(tmp_path / "b")])] == ["2.0"]
    assert [row.version for row in scan([str(tmp_path / "b"), str(tmp_path / "a")])] == ["1.0"]


def test_scan_leaves_zip_files_to_importlib_metadata(tmp_path: Path) -> None:
    install(tmp_path / "src", "acme", "acme", "acme.plugin", needs="sgld-core>=0.1")
    archive = tmp_path / "acme.zip"
    with zipfile.ZipFile(archive, "w") as file:
        for path in (tmp_path / "src").rglob("*"):
            file.write(path, path.relative_to(tmp_path / "src"))
    assert [tuple(row) for row in scan([str(archive)])] == [
        ("acme", "1.0", ">=0.1", V1, "acme", "acme.plugin")
    ]


def test_egg_info_of_a_development_install_is_read(tmp_path: Path) -> None:
    info = tmp_path / "old_style.egg-info"
    info.mkdir()
    (info / "PKG-INFO").write_text("Name: old-style\nVersion: 3\n\n")
    (info / "entry_points.txt").write_text(f"[{V1}]\nold = old.plugin\n")
    assert [(row.dist, row.version, row.name) for row in scan([str(tmp_path)])] == [
        ("old-style", "3", "old")
    ]


def test_unreadable_metadata_and_paths_that_are_not_there_do_no_harm(tmp_path: Path) -> None:
    info = tmp_path / "odd-1.dist-info"
    info.mkdir()
    (info / "entry_points.txt").write_bytes(b"[sgld.plugins.v1]\nodd = odd\xff.plugin\n")
    found = find({}, [str(tmp_path), str(tmp_path / "nothing"), "\0"[:0]])
    assert "builtin" in names(found)
    assert "SGLD-P012" in codes(found)


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("", []),
        ("[sgld.plugins.v1]\na=b.c\n", [(V1, "a", "b.c")]),
        ("[ sgld.plugins.v1 ]\n# note\n; note\n a = b \n", [(V1, "a", "b")]),
        ("[other]\na=b\n[sgld.plugins.v2]\nc\n", [("sgld.plugins.v2", "c", "")]),
        ("a = b\n[sgld.plugins.v1\nc = d\n", []),
    ],
)
def test_parse_entry_points(text: str, rows: list[tuple[str, str, str]]) -> None:
    assert parse_entry_points(text) == rows


ALLOW_TABLE = [
    (None, ["builtin", "flux", "wan"], []),
    ("", ["builtin"], ["flux", "wan"]),
    (" , ", ["builtin"], ["flux", "wan"]),
    ("wan", ["builtin", "wan"], ["flux"]),
    ("SGLD_Wan", ["builtin", "wan"], ["flux"]),
    ("-wan", ["builtin", "flux"], ["wan"]),
    ("-sgld-wan,-flux", ["builtin"], ["flux", "wan"]),
    ("wan,flux,-flux", ["builtin", "wan"], ["flux"]),
    ("builtin", ["builtin"], ["flux", "wan"]),
    ("-builtin", ["builtin", "flux", "wan"], []),
]


@pytest.mark.parametrize(("text", "found", "denied"), ALLOW_TABLE)
def test_allow_list(tmp_path: Path, text: str | None, found: list[str], denied: list[str]) -> None:
    install(tmp_path, "sgld-wan", "wan", "sgld_wan.plugin")
    install(tmp_path, "sgld-flux", "flux", "sgld_flux.plugin")
    result = find({} if text is None else {"SGLD_PLUGINS": text}, [str(tmp_path)])
    assert names(result) == found
    assert [row.name for row in result.denied] == denied
    assert not result.failures


def test_a_name_in_the_allow_list_that_is_not_installed_is_noted(tmp_path: Path) -> None:
    install(tmp_path, "sgld-wan", "wan", "sgld_wan.plugin")
    (row,) = find({"SGLD_PLUGINS": "wam,wan"}, [str(tmp_path)]).failures
    assert row.code == "SGLD-P006"
    assert "'wam'" in row.message


@pytest.mark.parametrize(
    ("name", "value", "part"),
    [
        ("01.acme", "acme.plugin", "01.acme"),
        ("Acme", "acme.plugin", "'Acme'"),
        ("acme_x", "acme.plugin", "'acme_x'"),
        ("builtin", "acme.plugin", "reserved"),
        ("acme", "acme.plugin:thing", "'acme.plugin:thing'"),
        ("acme", "", "''"),
    ],
)
def test_p012_names(tmp_path: Path, name: str, value: str, part: str) -> None:
    install(tmp_path, "acme-dist", name, value)
    result = find({}, [str(tmp_path)])
    assert names(result) == ["builtin"]
    assert codes(result) == ["SGLD-P012"]
    assert part in result.failures[0].message
    assert result.failures[0].dist == "acme-dist"


def test_p012_two_entry_points_in_one_distribution(tmp_path: Path) -> None:
    install(tmp_path, "acme", text=f"[{V1}]\na = x.a\nb = x.b\n")
    result = find({}, [str(tmp_path)])
    assert names(result) == ["builtin"]
    assert codes(result) == ["SGLD-P012", "SGLD-P012"]
    assert "a, b" in result.failures[0].message


def test_p013_other_loader_is_listed_and_not_used(tmp_path: Path) -> None:
    install(tmp_path, "future", "future", "future.plugin", group="sgld.plugins.v99")
    result = find({}, [str(tmp_path)])
    assert names(result) == ["builtin"]
    (row,) = result.failures
    assert (row.code, row.dist, row.version) == ("SGLD-P013", "future", "1.0")
    assert "sgld.plugins.v99" in row.message
    assert V1 in row.message


def test_a_distribution_may_speak_to_both_loaders(tmp_path: Path) -> None:
    text = f"[{V1}]\nacme = acme.one\n[sgld.plugins.v2]\nacme = acme.two\n"
    install(tmp_path, "acme", text=text)
    result = find({}, [str(tmp_path)])
    assert [row.module for row in result.found] == ["sgld.builtin", "acme.one"]
    assert not result.failures


def test_p005_same_plugin_name_in_two_distributions(tmp_path: Path) -> None:
    install(tmp_path, "first", "acme", "first.plugin")
    install(tmp_path, "second", "acme", "second.plugin", version="2.0")
    result = find({}, [str(tmp_path)])
    assert names(result) == ["builtin"]
    assert codes(result) == ["SGLD-P005", "SGLD-P005"]
    for row in result.failures:
        assert "first 1.0" in row.message
        assert "second 2.0" in row.message
    assert names(find({"SGLD_PLUGINS": "-second"}, [str(tmp_path)])) == ["builtin", "acme"]


EXTERNAL_TABLE = [
    ({"SGLD_EXTERNAL_MODEL_PACKAGE": "acme"}, ["acme"]),
    ({"SGLANG_EXTERNAL_MODEL_PACKAGE": "acme.models"}, ["acme.models"]),
    ({"SGLD_EXTERNAL_MODEL_PACKAGE": " a , b,,a "}, ["a", "b"]),
    ({"SGLD_EXTERNAL_MODEL_PACKAGE": "", "SGLANG_EXTERNAL_MODEL_PACKAGE": "b"}, ["b"]),
    ({"SGLD_EXTERNAL_MODEL_PACKAGE": "a,b", "SGLANG_EXTERNAL_MODEL_PACKAGE": "b, a"}, ["a", "b"]),
    ({"SGLD_EXTERNAL_MODEL_PACKAGE": "a", "SGLD_PLUGINS": ""}, ["a"]),
    ({"SGLD_EXTERNAL_MODEL_PACKAGE": ""}, []),
]


@pytest.mark.parametrize(("environ", "packages"), EXTERNAL_TABLE)
def test_external_packages(environ: dict[str, str], packages: list[str]) -> None:
    result = find(environ, [])
    assert [row.module for row in result.found if row.source == "local"] == packages
    assert not result.failures


def test_p006_two_lists_of_packages_that_differ() -> None:
    both = {"SGLD_EXTERNAL_MODEL_PACKAGE": "a", "SGLANG_EXTERNAL_MODEL_PACKAGE": "a,b,c"}
    result = find(both, [])
    assert [row.module for row in result.found if row.source == "local"] == ["a"]
    assert codes(result) == ["SGLD-P006"]
    assert "SGLANG_EXTERNAL_MODEL_PACKAGE names b, c, but SGLD_EXTERNAL" in str(result.failures[0])


def test_p012_external_package_that_is_no_module_name() -> None:
    result = find({"SGLD_EXTERNAL_MODEL_PACKAGE": "my pkg,good"}, [])
    assert codes(result) == ["SGLD-P012"]
    assert "'my pkg'" in result.failures[0].message
    assert names(result) == ["builtin", "good"]


def test_a_package_named_by_the_environment_and_an_entry_point_is_one_plugin(
    tmp_path: Path,
) -> None:
    install(tmp_path, "acme-dist", "acme", "acme.plugin")
    result = find({"SGLD_EXTERNAL_MODEL_PACKAGE": "acme"}, [str(tmp_path)])
    assert [(row.module, row.source) for row in result.found[1:]] == [("acme", "local")]
