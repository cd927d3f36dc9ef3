"""The wheel holds what it should, and names what it needs."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, ROOT]
    subprocess.run(build, check=True)
    (path,) = folder.glob("*.whl")
    return zipfile.ZipFile(path)


def metadata(wheel: zipfile.ZipFile, name: str) -> str:
    (path,) = (each for each in wheel.namelist() if each.endswith(f".dist-info/{name}"))
    return wheel.read(path).decode()


def test_the_wheel_holds_every_module_the_types_and_the_contract_suite(wheel: zipfile.ZipFile) -> None:
    shipped = {each for each in wheel.namelist() if ".dist-info/" not in each}
    package = ROOT / "transcript_backends"
    assert shipped == {
        str(each.relative_to(ROOT)) for each in package.rglob("*") if each.is_file() and "__pycache__" not in each.parts
    }
    assert shipped >= {"transcript_backends/py.typed", "transcript_backends/testing/stores.py"}


def test_the_core_needs_two_small_packages_and_the_rest_are_extras(wheel: zipfile.ZipFile) -> None:
    needed = [line for line in metadata(wheel, "METADATA").splitlines() if line.startswith("Requires-Dist:")]
    assert sorted(line.split()[1].split(">")[0] for line in needed if "extra ==" not in line) == ["msgspec", "platformdirs"]
    assert any(line.startswith("Requires-Dist: boto3") and "'s3'" in line for line in needed)


def test_the_wheel_installs_the_command_line(wheel: zipfile.ZipFile) -> None:
    assert "transcripts = transcript_backends.cli:main" in metadata(wheel, "entry_points.txt")
