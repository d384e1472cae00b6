"""The tests of what bucketsim takes from torch, under another torch. Not part of ``make test``.

    python traces/tools/other_torch.py 2.10.0 [--folder DIR] [--find-links DIR]

Makes a virtual environment in DIR (by default in the temporary folder; it is used again if it is there),
installs that torch (some gigabytes) and what bucketsim needs, and runs ``TESTS`` in it. Cases whose keywords
that torch does not have are skipped by name. The exit code is pytest's.
"""

import argparse
import subprocess
import sys
import tempfile
import tomllib
import venv
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
RUNNERS = ("pytest", "pytest-xdist", "hypothesis")
TESTS = (
    "tests/systems/test_bucketing_against_torch.py",  # how torch cuts buckets
    "tests/systems/test_ddp_sequences.py",  # buckets and every collective, under every switch
    "tests/dist/test_apply_and_record.py",
    "tests/autotune",
    "tests/dist/test_ranks.py",  # replay
)


def main() -> int:
    """Install and run."""
    parser = argparse.ArgumentParser(description="Run the tests of what torch does, under another.")
    parser.add_argument("torch", help="a version on PyPI, such as 2.10.0")
    parser.add_argument("--folder", type=Path, help="where the virtual environment is, or is made")
    parser.add_argument("--find-links", help="a folder of wheels for pip to look into first")
    given = parser.parse_args()
    folder = given.folder or Path(tempfile.gettempdir(), f"bucketsim-torch-{given.torch}")
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    needed = [name for name in project["dependencies"] if not name.startswith("torch")]
    links = ["--find-links", given.find_links] if given.find_links else []
    pip = [str(python), "-m", "pip", "install", "--quiet", "--no-cache-dir", *links]
    subprocess.run([*pip, f"torch=={given.torch}", *needed, *RUNNERS], check=True)
    tests = [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS]
    subprocess.run([str(python), "-c", "import torch; print('torch', torch.__version__)"], check=True)
    return subprocess.run(tests, cwd=REPOSITORY, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
