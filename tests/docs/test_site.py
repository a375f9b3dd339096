"""The site of the documentation: it builds without a warning, and its pages load nothing from another host."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.docs.pages import ROOT


def test_the_site_builds_without_a_broken_link_and_loads_nothing_from_another_host(tmp_path: Path):
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    pages = list(tmp_path.rglob("*.html"))
    assert (tmp_path / "tutorial" / "index.html") in pages
    loaded = {
        found
        for page in pages
        for found in re.findall(r"""<(?:link|script|img)[^>]+(?:src|href)=["']?(https?://[^"' >]+)""", page.read_text())
    }
    assert not loaded
