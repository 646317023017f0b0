"""The page in every state of a run, its errors, and that it repeats to the byte."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from PIL import Image

from flowalign.errors import FlowalignError
from flowalign.report import write_report
from tests.report.conftest import BuildRun


def words(page: Path) -> str:
    """The page without markup, style and script."""
    html = re.sub(r"<(style|script)>.*?</\1>", "", page.read_text(encoding="utf-8"), flags=re.S)
    return " ".join(re.sub(r"<[^>]*>", " ", html).replace("\N{NO-BREAK SPACE}", " ").split())


def test_a_finished_run(build_run: BuildRun) -> None:
    folder = build_run()
    page = write_report(folder)
    assert page == folder / "report.html"
    said = words(page)
    assert "Finished: 150 of 150 iterations." in said
    assert "Better The GenEval score on 48 held-out prompts rose from 0.302 to 0.552." in said
    assert "paired difference over 48 prompts" in said
    assert "Of 96 pictures, 24 improved, 0 got worse and 72 kept their score." in said
    assert "Shown are 48 of 96" in said
    assert "What could not be read" not in said
    assert "Held-out score over iterations" not in said
    assert page.read_text().count("<img ") == 96


def test_noise_is_called_noise(build_run: BuildRun) -> None:
    said = words(write_report(build_run(evaluated={0: 0.3, 150: 0.28})))
    assert "Within noise" in said
    assert "Better" not in said


def test_other_settings_are_not_compared(build_run: BuildRun) -> None:
    settings = {150: {"guidance_scale": 3.0}}
    said = words(write_report(build_run(settings=settings)))
    assert "Not comparable" in said
    assert "differ in guidance_scale" in said
    assert "1 before, 3 after" in said


def test_a_run_in_progress(build_run: BuildRun) -> None:
    said = words(write_report(build_run(done=40, status="running", evaluated={0: 0.3})))
    assert "In progress: 40 of 150 iterations." in said
    assert "Measured once" in said
    assert "There is no second evaluation to compare it with yet." in said


def test_an_interrupted_run(build_run: BuildRun) -> None:
    folder = build_run(
        done=40, status="stopped", message="interrupted", evaluated={0: 0.3, 20: 0.6}
    )
    said = words(write_report(folder))
    assert "Stopped after 40 of 150 iterations: interrupted" in said
    assert "rose from 0.302 to 0.604, after 20 iterations." in said
    assert "Score at iteration 20" in said


def test_a_run_without_evaluation(build_run: BuildRun) -> None:
    said = words(write_report(build_run(evaluated={})))
    assert "Not measured" in said
    assert "From 0.327 (mean of the first 15 iterations) to 0.551" in said


def test_a_run_that_has_only_started(build_run: BuildRun) -> None:
    said = words(write_report(build_run(done=0, status="running", evaluated={})))
    assert "In progress: 0 of 150 iterations." in said
    assert "metrics.jsonl is missing." in said


def test_the_score_over_iterations_needs_three_evaluations(build_run: BuildRun) -> None:
    said = words(write_report(build_run(evaluated={0: 0.3, 50: 0.6, 150: 0.5})))
    assert "Measured 3 times" in said
    assert "Highest: 0.604 at iteration 50." in said


def test_prompts_and_messages_are_escaped(build_run: BuildRun) -> None:
    attack = "<script>alert(1)</script>"
    folder = build_run(first_prompt=attack, message=f'"{attack}', status="stopped")
    html = write_report(folder).read_text(encoding="utf-8")
    assert attack not in html
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in html
    assert html.count("<script>") == 1  # ours


def test_nothing_is_fetched(build_run: BuildRun) -> None:
    html = write_report(build_run()).read_text(encoding="utf-8")
    sources = re.findall(r'(?:src|href)="([^"]{0,30})', html)
    assert sources and all(source.startswith("data:") for source in sources)
    assert "default-src 'none'" in html
    assert "url(" not in html and "@import" not in html


def test_the_same_run_gives_the_same_bytes(build_run: BuildRun, tmp_path: Path) -> None:
    folder = build_run()
    first, second = (write_report(folder, tmp_path / name) for name in ("a.html", "b.html"))
    assert first.read_bytes() == second.read_bytes()


def test_lost_pictures_are_noted(build_run: BuildRun) -> None:
    folder = build_run()
    (folder / "samples/step-000000/0000.png").unlink()
    broken = folder / "samples/step-000150/0004.png"
    broken.write_bytes(broken.read_bytes()[:60])
    page = write_report(folder)
    assert page.read_text().count("<img ") == 92
    assert "2 pictures are missing or cannot be read: samples/step-000000/0000.png" in words(page)


def test_large_pictures_become_thumbnails(build_run: BuildRun) -> None:
    folder = build_run()
    large = folder / "samples/step-000150/0000.png"
    Image.effect_noise((1024, 512), 80).convert("RGB").save(large)
    html = write_report(folder).read_text()
    assert 'src="data:image/jpeg;base64,' in html
    assert 'width="256" height="128"' in html
    assert len(html) < large.stat().st_size


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FlowalignError, match="is not a run folder"):
        write_report(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_page_that_cannot_be_written_is_an_error(build_run: BuildRun, tmp_path: Path) -> None:
    folder = build_run(done=2, evaluated={})
    (tmp_path / "file").write_text("")
    with pytest.raises(FlowalignError, match="cannot be written to .*; give --out another path"):
        write_report(folder, tmp_path / "file" / "page.html")
    with pytest.raises(FlowalignError, match="is a folder; give --out the name of a file"):
        write_report(folder, tmp_path)


def test_a_failed_write_leaves_the_old_page(
    build_run: BuildRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = build_run(done=2, evaluated={})
    page = write_report(folder)
    old = page.read_bytes()
    full = Path.write_text

    def half(path: Path, data: str, **options: str) -> int:
        full(path, data[: len(data) // 2], **options)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", half)
    with pytest.raises(FlowalignError, match="No space left on device"):
        write_report(folder)
    assert page.read_bytes() == old
