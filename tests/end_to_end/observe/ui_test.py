"""`tandem ui` in a real browser: the list, comparison, keys, a run that goes on, narrow and dark pages, and what it refuses."""
import contextlib
import json
import os
import subprocess
import urllib.error
import urllib.parse
import urllib.request

import pytest
from playwright.sync_api import expect, sync_playwright

import small_run
from waiting import wait_until

BROWSER = os.environ["TANDEM_BROWSER"]


def row(step, reward, **more):
    return {"step": step, "reward/mean": reward, "drift/mean_abs_delta": 0.01 * step, "drift/mean_abs_delta_low": 0.008 * step,
            "drift/mean_abs_delta_high": 0.012 * step, "drift/ess_fraction": 0.9, "throughput/sampled_tokens_per_s": 100 + step, "time/step": 2.0,
            "staleness/mean": 0, "length/mean": 12, **more}


def append(run, *rows):
    with open(run / "metrics.jsonl", "a", encoding="utf-8") as file:
        for one in rows:
            file.write(json.dumps(one) + "\n")


def make_run(folder, name, rewards, ended=None):
    run = folder / name
    run.mkdir(parents=True)
    (run / "run.json").write_text(json.dumps({"schema": 1, "run_id": name, "started_at": "2026-11-28T10:00:00Z", "model": {"path": "models/m"}}))
    events = [{"kind": "run_started", "step": 0}] + ([{"kind": ended, "step": len(rewards)}] if ended else [])
    (run / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    append(run, *(row(step, reward) for step, reward in enumerate(rewards, 1)))
    return run


@pytest.fixture
def runs(tmp_path):
    folder = tmp_path / "runs"
    make_run(folder, "first", [0.1, 0.2, 0.3], "run_finished")
    make_run(folder, "group/second", [0.2, 0.4, 0.6], "run_stopped")
    make_run(folder, "live", [0.5])
    capture = folder / "first" / "captures" / "step_2"
    capture.mkdir(parents=True)
    (capture / "manifest.json").write_text("{}")
    (capture / "attribution.html").write_text("<h1>the attribution</h1>")
    return folder


@contextlib.contextmanager
def serving(*arguments):
    process = subprocess.Popen([small_run.TANDEM, "ui", *map(str, arguments), "--listen", "127.0.0.1:0"], stdout=subprocess.PIPE, text=True)
    try:
        line = process.stdout.readline()
        assert line.startswith("http://127.0.0.1:"), line
        yield line.split()[0].rstrip("/")
    finally:
        process.terminate()
        assert process.wait(timeout=30) == 0


@pytest.fixture
def site(runs):
    with serving(runs) as url:
        yield url


@pytest.fixture(scope="module")
def browser():
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def page(browser, site):
    context = browser.new_context(viewport={"width": 1200, "height": 900}, color_scheme="light", reduced_motion="reduce")
    page = context.new_page()
    problems = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    page.on("request", lambda request: problems.append(request.url) if not request.url.startswith(site) else None)
    page.goto(site)
    expect(page.locator("tr[data-run]")).to_have_count(3)
    yield page
    context.close()
    assert not problems, problems


def cells(page, name):
    return page.locator(f'tr[data-run="{name}"] td').all_inner_texts()


def curve(page, key):
    """What the chart of a metric shows: run -> [[step, value]]."""
    return page.evaluate("""(key) => {
      const item = chartCards.find(({curve}) => curve.key === key);
      const chart = drawn.find(({canvas}) => item.node.contains(canvas)).chart;
      return Object.fromEntries(chart.data.datasets.filter((set) => !set.edge).map((set) => [set.label, set.data.map((p) => [p.x, p.y])]));
    }""", key)


def shows(page, key, wanted):
    wait_until(lambda: curve(page, key) == wanted, f"{key} is {curve(page, key)}, wanted {wanted}", seconds=20)


def get(url):
    try:
        with urllib.request.urlopen(url, timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_the_list_tells_each_run_with_its_state_and_last_numbers(page):
    assert [row.get_attribute("data-run") for row in page.locator("tr[data-run]").all()] == ["first", "group/second", "live"]
    assert cells(page, "first")[2:6] == ["finished", "3", "0.3", "0.03"]
    assert cells(page, "group/second")[2] == "stopped" and cells(page, "live")[2] == "running"
    assert "drift at 2" in cells(page, "first")[1]


def test_a_run_that_is_under_way_is_followed_as_it_writes(page, runs):
    shows(page, "reward/mean", {"live": [[1, 0.5]]})
    append(runs / "live", row(2, 0.6), row(3, 0.7))
    shows(page, "reward/mean", {"live": [[1, 0.5], [2, 0.6], [3, 0.7]]})
    with open(runs / "live" / "metrics.jsonl", "a", encoding="utf-8") as file:
        file.write(json.dumps(row(4, 0.8))[:20])  # a line that is being written
        file.flush()
        wait_until(lambda: cells(page, "live")[3] == "3", "the list never took step 3", seconds=20)
        file.write(json.dumps(row(4, 0.8))[20:] + "\n")
    shows(page, "reward/mean", {"live": [[1, 0.5], [2, 0.6], [3, 0.7], [4, 0.8]]})
    append(runs / "live", row(3, 0.65))  # a resumed run repeats steps: the last line counts
    shows(page, "reward/mean", {"live": [[1, 0.5], [2, 0.6], [3, 0.65], [4, 0.8]]})


def test_a_run_that_begins_anew_is_shown_anew(page, runs):
    shows(page, "reward/mean", {"live": [[1, 0.5]]})
    append(runs / "live", row(2, 0.6))
    shows(page, "reward/mean", {"live": [[1, 0.5], [2, 0.6]]})
    (runs / "live" / "metrics.jsonl").write_text("")
    append(runs / "live", row(1, 0.9))
    shows(page, "reward/mean", {"live": [[1, 0.9]]})


def test_runs_are_compared_with_the_keys_alone_and_the_address_keeps_the_choice(page):
    page.keyboard.press("j")
    page.keyboard.press(" ")
    page.keyboard.press("ArrowDown")
    page.keyboard.press(" ")
    shows(page, "reward/mean", {"live": [[1, 0.5]], "first": [[1, 0.1], [2, 0.2], [3, 0.3]], "group/second": [[1, 0.2], [2, 0.4], [3, 0.6]]})
    assert urllib.parse.parse_qs(urllib.parse.urlparse(page.url).fragment)["run"] == ["live", "first", "group/second"]
    page.keyboard.press("k")
    page.keyboard.press(" ")
    shows(page, "drift/mean_abs_delta", {"live": [[1, 0.01]], "group/second": [[1, 0.01], [2, 0.02], [3, 0.03]]})
    page.reload()
    shows(page, "drift/mean_abs_delta", {"live": [[1, 0.01]], "group/second": [[1, 0.01], [2, 0.02], [3, 0.03]]})
    expect(page.locator("#legend span")).to_have_text(["live", "group/second"])


def test_the_numbers_beside_each_other_have_intervals(page):
    page.locator('tr[data-run="first"] td').nth(1).click()
    page.locator('tr[data-run="live"] td').nth(1).click()
    # Mean 0.2 of 0.1, 0.2, 0.3; half width 4.303 * 0.1 / sqrt(3) = 0.248.
    expect(page.locator(".beside .row-value").first).to_have_text("0.2 [-0.0484, 0.448]")
    expect(page.locator(".beside h4")).to_have_text(["Reward", "Drift, nats", "Sampled tokens a second"])


def test_the_filter_narrows_the_list_and_escape_clears_it(page):
    page.keyboard.press("/")
    page.keyboard.type("sec")
    expect(page.locator("tr[data-run]")).to_have_count(1)
    page.keyboard.press("Escape")
    expect(page.locator("tr[data-run]")).to_have_count(3)


def test_runs_of_one_name_in_two_directories_are_both_listed_and_a_run_named_twice_once(tmp_path):
    make_run(tmp_path / "a", "same", [0.1])
    make_run(tmp_path / "b", "same", [0.7])
    with serving(tmp_path / "a", tmp_path / "b", tmp_path / "a" / "same") as url:
        listed = {run["name"]: run["last"]["reward/mean"] for run in json.loads(get(url + "/api/runs")[1])}
        assert listed == {"same": 0.1, "same (2)": 0.7}
        assert json.loads(get(url + "/api/rows?run=same%20(2)&keys=reward/mean")[1])["rows"] == [{"step": 1, "reward/mean": 0.7}]


def test_reports_are_made_from_what_the_run_has_written_and_attributions_are_opened(page, site, runs):
    with page.context.expect_page() as opened:
        page.locator('tr[data-run="group/second"] a', has_text="report").click()
    expect(opened.value.locator("h1")).to_have_text("group/second")
    append(runs / "live", row(2, 0.6))
    status, text = get(f"{site}/runs/live/report.html")
    assert status == 200 and '"reward/mean":[0.5,0.6]' in text
    assert get(f"{site}/runs/first/captures/step_2/attribution.html") == (200, "<h1>the attribution</h1>")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1200])
def test_a_page_of_each_width_and_theme_fits_its_window(browser, site, scheme, width, tmp_path):
    context = browser.new_context(viewport={"width": width, "height": 844}, color_scheme=scheme, reduced_motion="reduce")
    page = context.new_page()
    page.goto(f"{site}/#run=first&run=group%2Fsecond")
    expect(page.locator("#legend span")).to_have_count(2)
    shows(page, "reward/mean", {"first": [[1, 0.1], [2, 0.2], [3, 0.3]], "group/second": [[1, 0.2], [2, 0.4], [3, 0.6]]})
    assert page.evaluate("document.scrollingElement.scrollWidth <= window.innerWidth")
    assert page.evaluate("(([box]) => box.scrollWidth <= box.clientWidth)(document.getElementsByClassName('runs'))"), "the list needs no scrolling to the side"
    hidden = page.locator(".chart", has_text="Held-out greedy")
    expect(hidden).to_be_hidden()  # no run has an evaluation
    assert page.evaluate("document.documentElement.dataset.theme") == scheme
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.locator("#theme").click()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != dark
    shot = os.environ.get("TANDEM_TEST_PICTURES")
    if shot:
        page.locator("#theme").click()
        page.screenshot(path=f"{shot}/ui_{scheme}_{width}.png", full_page=True)
    context.close()


def test_a_server_that_has_gone_is_said_so_and_found_again(browser, runs):
    context = browser.new_context()
    page = context.new_page()
    with serving(runs) as url:
        page.goto(url)
        expect(page.locator("tr[data-run]")).to_have_count(3)
    expect(page.locator(".notice")).to_contain_text("does not answer", timeout=20_000)
    context.close()


def test_a_directory_without_runs_says_where_it_looks(browser, tmp_path):
    context = browser.new_context()
    page = context.new_page()
    with serving(tmp_path) as url:
        page.goto(url)
        expect(page.locator(".empty")).to_contain_text(f"There is no run in {tmp_path} yet")
        make_run(tmp_path, "new", [0.5])
        expect(page.locator("tr[data-run]")).to_have_count(1, timeout=20_000)
    context.close()


def test_what_it_does_not_show_is_refused(site):
    assert get(f"{site}/nothing")[0] == 404
    assert get(f"{site}/api/rows?run=nobody")[0] == 404
    assert get(f"{site}/api/rows?run=live&after=-1")[0] == 400
    for path in ("/runs/..%2F..%2Fetc/report.html", "/runs/first/captures/step_9/attribution.html", "/runs/first/owner",
                 "/runs/first/captures/step_..%2F..%2F/attribution.html", "/runs//report.html"):
        assert get(site + path)[0] == 404, path
    request = urllib.request.Request(site, headers={"Host": "evil.example"})
    with pytest.raises(urllib.error.HTTPError) as error:
        urllib.request.urlopen(request, timeout=30)
    assert error.value.code == 403


def test_wrong_arguments_are_told_what_is_wanted(runs, site):
    def ui(*arguments):
        done = subprocess.run([small_run.TANDEM, "ui", *map(str, arguments)], capture_output=True, text=True, timeout=60)
        return done.returncode, done.stderr

    code, said = ui(runs / "nowhere")
    assert code == 2 and "no directory" in said
    code, said = ui(runs, "--listen", "0.0.0.0:0")
    assert code == 2 and "not on loopback" in said and "ssh -L" in said
    code, said = ui(runs, "--listen", site.removeprefix("http://"))
    assert code == 2 and "cannot listen on" in said
