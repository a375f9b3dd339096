"""Jobs on the page (rule D1, J): listed with why they wait, followed as they print, cancelled, run again, approved."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect

from fleetgate.jobs import job_store
from tests.dashboard import jobs
from tests.dashboard.service import Server, wait_until
from tests.dashboard.test_access import check_dark, check_widths, violations

Opened = Callable[[], Page]


@pytest.fixture(autouse=True)
def _without_jobs(server: Server) -> Iterator[None]:
    jobs.forget(server)
    yield
    if left := list(server.gate.read().tickets):
        server.run("cancel", *left, check=False)


def _row(page: Page, name: str) -> Locator:
    return page.locator("#job-list tbody tr", has_text=name)


def _state(server: Server, ident: str) -> str:
    return job_store.view(server.gate, ident).state


def test_D1_no_jobs_says_how_to_leave_one(server: Server, open_page: Opened) -> None:
    server.caps(umans=1)
    server.ask("umans/coder", "agent {number}", 2)
    page = open_page()
    expect(page.locator("#job-list")).to_contain_text("No jobs")
    expect(page.locator("#job-list")).to_contain_text("fleetgate submit")


def test_D1_a_job_appears_waits_with_its_reason_runs_and_ends_while_one_looks(
    server: Server, open_page: Opened, tmp_path: Path
) -> None:
    page = open_page()
    ident = jobs.submit(server, "sh", "-c", f"until test -e {tmp_path}/go; do sleep 0.05; done", name="nightly")
    row = _row(page, "nightly")
    expect(row).to_contain_text("queued")
    expect(row).to_contain_text("1 of 1")
    expect(row).to_contain_text("no worker")
    with jobs.worker(server):
        expect(row).to_contain_text("running")
        (tmp_path / "go").touch()
        expect(row).to_contain_text("succeeded")
    assert _state(server, ident) == "succeeded"
    page.get_by_role("button", name="Finished").click()
    expect(row).to_be_visible()
    page.get_by_role("button", name="Waiting", exact=False).first.click()
    expect(page.locator("#job-list")).to_contain_text("No matching jobs")


def test_D1_output_is_shown_as_it_is_printed_stderr_marked_and_never_as_markup(
    server: Server, open_page: Opened, tmp_path: Path
) -> None:
    script = (
        r"printf '<img src=x onerror=alert(1)>\n\033[31mred\033[0m \303'; echo oops >&2; "
        f"until test -e {tmp_path}/go; do sleep 0.05; done; "
        r"printf '\244\nlast\n'"
    )
    jobs.submit(server, "sh", "-c", script, name="talker")
    page = open_page()
    with jobs.worker(server):
        expect(_row(page, "talker")).to_contain_text("running")
        _row(page, "talker").get_by_role("button", name="talker", exact=True).click()
        output = page.get_by_role("log", name="Output")
        expect(output).to_contain_text("<img src=x onerror=alert(1)>")
        expect(output.locator(".err")).to_have_text("oops\n")
        expect(page.get_by_role("dialog")).to_contain_text("Following live")
        (tmp_path / "go").touch()
        expect(output).to_contain_text("last")
        expect(page.get_by_role("dialog")).not_to_contain_text("Following")
    shown = output.inner_text()
    assert "ä" in shown
    assert "\x1b" not in shown
    assert "�" not in shown, "a character that came in two pieces is put together"
    expect(page.get_by_role("dialog")).to_contain_text("succeeded")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)


def test_D1_a_job_that_runs_is_ended_after_a_question_and_run_anew(server: Server, open_page: Opened) -> None:
    ident = jobs.submit(server, "sleep", "600", name="endless")
    page = open_page()
    row = _row(page, "endless")
    with jobs.worker(server):
        wait_until("it is running", lambda: _state(server, ident) == "running")
        expect(row).not_to_contain_text("queued")
        page.get_by_role("button", name="Stop the job: endless").click()
        page.get_by_role("button", name="Keep it").click()
        assert _state(server, ident) == "running"
        page.get_by_role("button", name="Stop the job: endless").click()
        page.get_by_role("button", name="Stop the job", exact=True).click()
        expect(page.locator("#toasts")).to_contain_text(re.compile("(Stopping|Cancelled): endless"))
        expect(row).to_contain_text("cancelled")
    assert "owner" in job_store.view(server.gate, ident).job.why

    page.get_by_role("button", name="Run again: endless").click()
    expect(page.locator("#toasts")).to_contain_text("Queued again: endless")
    wait_until("it is in the queue", lambda: _state(server, ident) == "queued")
    page.locator(".toast", has_text="Queued again").get_by_role("button", name="Undo").click()
    wait_until("it is not", lambda: _state(server, ident) == "cancelled")


def test_D1_J5_a_held_job_is_approved_by_keyboard(server: Server, open_page: Opened) -> None:
    ident = jobs.submit(server, "true", name="careful", confirm=True)
    page = open_page()
    with jobs.worker(server):
        expect(_row(page, "careful")).to_contain_text("held")
        page.keyboard.press("6")
        assert page.evaluate("document.activeElement.id") == "jobs"
        for _ in range(5):  # four choices, then the row
            page.keyboard.press("Tab")
        expect(_row(page, "careful")).to_be_focused()
        page.keyboard.press("Enter")
        page.get_by_role("button", name="Approve…").focus()
        page.keyboard.press("Enter")
        page.get_by_role("button", name="Approve", exact=True).focus()
        page.keyboard.press("Enter")
        expect(page.locator("#toasts")).to_contain_text("Approved: careful")
        expect(_row(page, "careful")).to_contain_text("succeeded")
    assert _state(server, ident) == "succeeded"


def test_D1_many_jobs_are_paged(server: Server, open_page: Opened) -> None:
    for number in range(1, 31):
        jobs.submit(server, "true", name=f"job {number:02}")
    page = open_page()
    rows = page.locator("#job-list tbody tr")
    expect(rows).to_have_count(12)
    expect(page.locator("#job-list .pager")).to_contain_text("1–12 of 30")
    page.get_by_role("button", name="Next page of the jobs").click()
    expect(rows.first).to_contain_text("job 13")
    page.get_by_role("button", name="Next page of the jobs").click()
    expect(rows).to_have_count(6)


def test_D1_trouble_with_the_jobs_is_said_and_mended(server: Server, open_page: Opened) -> None:
    jobs.submit(server, "true", name="there")
    page = open_page()
    expect(_row(page, "there")).to_be_visible()
    page.route("**/v1/jobs?*", lambda route: route.fulfill(status=503, json={"error": "the disk is full"}))
    jobs.submit(server, "true", name="another")
    expect(page.locator("#job-list")).to_contain_text("The jobs cannot be read")
    expect(page.locator("#job-list")).to_contain_text("the disk is full")
    again = page.locator("#job-list").get_by_role("button", name="Try again")
    with page.expect_request("**/v1/jobs?*"):
        again.click()
    page.unroute("**/v1/jobs?*")
    again.evaluate_all("all => all.forEach((each) => each.click())")  # it may be gone by now: the page tries, too
    expect(_row(page, "another")).to_be_visible()


def test_D1_H5_without_the_token_jobs_are_listed_and_their_output_is_not(server: Server, open_page: Opened) -> None:
    jobs.submit(server, "echo", "secret", name="private")
    signed_in = open_page()
    with jobs.worker(server):
        expect(_row(signed_in, "private")).to_contain_text("succeeded")
    reader = signed_in.context.browser.new_page()  # type: ignore[union-attr]
    try:
        reader.goto(server.url)
        _row(reader, "private").get_by_role("button", name="private", exact=True).click()
        expect(reader.get_by_role("dialog")).to_contain_text("fleetgate open")
        expect(reader.get_by_role("dialog").locator(".dialog-foot button")).to_have_count(0)
        expect(reader.locator("#job-list td.do button:visible")).to_have_count(0)
    finally:
        reader.close()


def test_D1_jobs_fit_on_a_phone_and_pass_axe(server: Server, open_page: Opened, axe: str) -> None:
    jobs.afternoon(server)
    page = open_page()
    expect(_row(page, "Nightly import").first).to_be_visible()
    check_widths(page, 320, 768)
    _row(page, "Nightly import").get_by_role("button", name="Nightly import", exact=True).click()
    expect(page.get_by_role("log", name="Output")).to_contain_text("quantize")
    check_widths(page, 320)
    assert violations(page, axe, "dialog") == []
    check_dark(page, axe, "dialog")
