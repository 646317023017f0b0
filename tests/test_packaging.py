"""What is installed is what is here: packages, links, data files, and a light import."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from configparser import ConfigParser
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LINKED = ("samplers", "objectives", "rewards")


@pytest.fixture(scope="module")
def setup() -> ConfigParser:
    config = ConfigParser()
    config.read(ROOT / "setup.cfg")
    return config


def tracked(*under: str) -> list[str]:
    """Files of the working tree that git does not ignore: build outputs do not count."""
    listing = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "--", *under],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    if listing.returncode:
        pytest.skip("not a git checkout")
    return [name for name in listing.stdout.splitlines() if (ROOT / name).is_file()]


def installed_name(path: str) -> str:
    """``samplers/ode.py -> flowalign/samplers/ode.py``."""
    return f"flowalign/{path}" if path.split("/")[0] in LINKED else path


def test_listed_packages_are_the_folders(setup):
    listed = setup["options"]["packages"].split()
    inits = [p for p in tracked("flowalign", *LINKED) if p.endswith("/__init__.py")]
    folders = [str(Path(installed_name(p)).parent).replace("/", ".") for p in inits]
    assert sorted(listed) == sorted(folders)
    assert len(set(listed)) == len(listed)


def test_every_module_is_in_a_listed_package(setup):
    listed = set(setup["options"]["packages"].split())
    for path in tracked("flowalign", *LINKED):
        if path.endswith(".py"):
            assert str(Path(installed_name(path)).parent).replace("/", ".") in listed, path


@pytest.mark.parametrize("name", LINKED)
def test_links_resolve_to_the_folders_at_the_root(name, setup):
    link = ROOT / "flowalign" / name
    assert link.is_symlink() and str(link.readlink()) == f"../{name}"
    assert link.resolve() == ROOT / name
    assert f"flowalign.{name} = {name}" in setup["options"]["package_dir"].splitlines()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> list[str]:
    """The names in a wheel built from a copy of the tree (a build writes beside its sources)."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    for name in tracked():
        target = source / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.suffix == ".safetensors":
            target.touch()  # its name is enough
        else:
            target.write_bytes((ROOT / name).read_bytes())
    for name in LINKED:
        (source / "flowalign" / name).symlink_to(f"../{name}")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out)]
    built = subprocess.run([*command, str(source)], capture_output=True, text=True)
    assert built.returncode == 0, built.stdout + built.stderr
    (path,) = out.glob("*.whl")
    return zipfile.ZipFile(path).namelist()


def test_the_wheel_holds_this_package_only(wheel):
    tops = {name.split("/")[0] for name in wheel}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"flowalign"}


def test_the_wheel_holds_every_module_and_data_file(wheel):
    expected = {installed_name(name) for name in tracked("flowalign", *LINKED)}
    assert "flowalign/samplers/ode.py" in expected
    assert "flowalign/embedded/checkpoint/model_index.json" in expected
    assert "flowalign/recipes/embedded/demo.yaml" in expected
    assert expected - set(wheel) == set()
    assert {n for n in wheel if n.startswith("flowalign/")} - expected == set()


def test_the_command_is_installed(wheel, setup):
    assert "flowalign = flowalign.cli:main" in setup["options.entry_points"]["console_scripts"]
    assert any(name.endswith(".dist-info/entry_points.txt") for name in wheel)


def test_import_is_light():
    code = """
import sys, flowalign, flowalign.samplers, flowalign.registry, flowalign.models.toy
heavy = ["diffusers", "transformers", "accelerate", "peft", "pydantic", "typer", "rapidocr", "PIL"]
print([name for name in heavy if name in sys.modules])
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert (run.returncode, run.stdout.strip()) == (0, "[]"), run.stderr


def test_the_public_names_are_there():
    import flowalign

    for name in flowalign.__all__:
        assert getattr(flowalign, name) is not None
    assert set(flowalign.__all__) <= set(dir(flowalign))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = flowalign.nothing
