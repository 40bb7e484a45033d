"""Pages of the drift lab from real runs in a browser: the contents of the document after its scripts ran."""
import html
import json
import math
import os
import re
import shutil
import subprocess

import drift_attribute_test as attribute_test
import drift_capture_test as capture_test
import pytest
import small_run

BROWSER = os.environ["TANDEM_BROWSER"]
NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e-?\d+)?")


@pytest.fixture(scope="module")
def run(model, tmp_path_factory):
    """A run with a bf16 server and two captures."""
    folder = tmp_path_factory.mktemp("run")
    path = small_run.write_config(folder, model, steps=4, capture={"every": 2}, prompts_per_step=8)
    config = json.loads(path.read_text())
    config["server"]["engine"]["dtype"] = "bf16"
    path.write_text(json.dumps(config))
    code, output = small_run.run(path)
    assert code == 0, output
    return folder / "runs" / "small"


@pytest.fixture(scope="module")
def attributed(run):
    """(page, JSON) of the last capture. The page is where the report expects it."""
    capture = run / "captures" / "step_4"
    page = capture / "attribution.html"
    code, table, result = small_run.drift("attribute", capture, "--html", str(page))
    assert code == 0, table
    return page, result


def drawn(page, tmp_path, script="", width=1280):
    """The document after its scripts ran, and its text. `script` runs last, with the nonce of the page.

    Scripts write their errors to the title, so that a dump of the document shows them."""
    text = page.read_text(encoding="utf-8")
    nonce = re.search(r"script-src 'nonce-([0-9a-f]+)'", text).group(1)
    watch = ("window.addEventListener('error', (e) => { document.title = 'ERROR ' + e.message; });"
             "console.error = (...a) => { document.title = 'ERROR ' + a.join(' '); };")
    text = text.replace("<body>", f'<body><script nonce="{nonce}">{watch}</script>')
    text = text.replace("</body>", f'<script nonce="{nonce}">{script}</script></body>')
    copy = tmp_path / "page.html"
    copy.write_text(text, encoding="utf-8")
    done = subprocess.run([BROWSER, "--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}",
                           f"--window-size={width},900", "--virtual-time-budget=5000", "--dump-dom", copy.as_uri()],
                          capture_output=True, text=True, timeout=120, check=True)
    assert "<title>ERROR" not in done.stdout, re.search("<title>(.*?)</title>", done.stdout).group(1)
    body = done.stdout[done.stdout.index("<main"):done.stdout.index("</main>")]
    return body, html.unescape(re.sub(r"<[^>]+>", " ", body))


def changed_page(page, path, change):
    """The page with other data."""
    text = page.read_text(encoding="utf-8")
    found = re.search(r'id="page-data">(.*?)</script>', text, re.DOTALL)
    data = json.loads(found.group(1))
    change(data)
    path.write_text(text[:found.start(1)] + json.dumps(data).replace("<", "\\u003c") + text[found.end(1):], encoding="utf-8")
    return path


def section(body, name):
    start = body.index(f'<section id="{name}"')
    return html.unescape(re.sub(r"<[^>]+>", "\t", body[start:body.index("</section>", start)]))


def rows(text):
    """The cells of the tables in a part of a page."""
    return [cell.strip() for cell in text.split("\t") if cell.strip()]


def number(value):
    """A number with three digits, and with an exponent if it is below a thousandth."""
    if value >= 1e-3:
        return f"{float(f'{value:.3g}'):g}"
    digits, exponent = f"{value:.2e}".split("e")
    return f"{digits}e{int(exponent)}"


def percent(value):
    return f"{0 if abs(value) < 5e-4 else 100 * value:.1f}"


def with_bounds(share):
    return f"{percent(share['value'])} % [{percent(share['low'])}, {percent(share['high'])}]"


def test_the_page_says_what_the_json_says(attributed, tmp_path):
    page, result = attributed
    body, text = drawn(page, tmp_path)
    assert "Attribution of step 4" in text
    verdict = section(body, "verdict")
    named = result["verdict"]["named"]
    assert named, "a bf16 server against an fp32 trainer"
    assert f"Largest named cause: cast of the weights on their way to the server (cast), {percent(named[0]['square_share']['value'])} %" in verdict
    for cause in named:
        assert cause["evidence"] in verdict and with_bounds(cause["square_share"]) in verdict
    parts = rows(section(body, "parts"))
    for part in result["parts"]:
        place = parts.index(part["part"])  # the waterfall
        assert parts[place + 1] == with_bounds(part["square_share"]), part["part"]
    assert [float(x) for x in NUMBER.findall(parts[parts.index("all") + 1])][0] == pytest.approx(
        result["total"]["mean_square"]["value"], rel=6e-3)
    for name in ("By tenth of the completion", "By entropy of the sampling distribution", "By sign of the advantage"):
        assert name in section(body, "splits")
    assert all(bucket["label"] in section(body, "splits") for bucket in result["splits"]["entropy"])


def test_bars_of_the_waterfall_begin_where_the_one_above_ended(attributed, tmp_path):
    page, _ = attributed
    body, _ = drawn(page, tmp_path)
    start = body.index("Waterfall of the mean square")
    card = body[start:body.index("delta = record + engine", start)]
    bars = [(float(left), float(width)) for left, width in re.findall(r'class="bar more" style="left: ?([\d.]+)%; ?width: ?([\d.]+)%', card)]
    *parts, whole = bars
    assert len(parts) > 5 and whole[0] == 0
    for (left, width), (following, _) in zip(parts, parts[1:]):
        assert following == pytest.approx(left + width, abs=0.6)
    assert sum(width for _, width in parts) == pytest.approx(whole[1], abs=1)


def test_causes_and_fields_that_the_page_does_not_know_are_shown_as_they_come(attributed, tmp_path):
    def change(data):
        data["injected"] = ["drift.inject.temperature 0.9"]
        data["verdict"]["named"].insert(0, {"cause": "temperature", "label": "temperature 0.9", "strength_kind": "exact", "slope": -.1,
                                            "square_share": {"value": .5, "low": .4, "high": .6},
                                            "evidence": "delta falls with log mu", "strength": {"value": .9, "low": .88, "high": .92}})
        data["verdict"]["diagnosis"] = [{"cause": "shifted_rows", "fraction": {"value": .25, "low": .1, "high": .45}, "believed": False}]
    body, whole = drawn(changed_page(attributed[0], tmp_path / "changed.html", change), tmp_path)
    verdict = section(body, "verdict")
    assert "Largest named cause: temperature 0.9, 50.0 % of the mean square." in verdict
    assert "delta falls with log mu" in verdict and "slope -0.1" in verdict
    assert "strength 0.9 [0.88, 0.92] (bounds: values that give the same record)" in verdict
    cells = rows(verdict)
    assert cells[cells.index("diagnosis"):][:7] == ["diagnosis", "cause", "fraction", "believed", "shifted_rows", "0.25 [0.1, 0.45]", "no"]
    assert "Faults were injected into this capture" in whole and "drift.inject.temperature 0.9" in whole


def test_a_cell_of_the_map_tells_its_token_and_its_parts(attributed, tmp_path):
    page, _ = attributed
    data = json.loads(re.search(r'id="page-data">(.*?)</script>', page.read_text(encoding="utf-8"), re.DOTALL).group(1))
    script = ("const canvas = document.querySelector('.map canvas'); canvas.scrollIntoView();"
              "for (const key of ['ArrowDown', 'ArrowDown', 'ArrowRight'])"
              " canvas.dispatchEvent(new KeyboardEvent('keydown', {key, cancelable: true}));")
    body, _ = drawn(page, tmp_path, script)
    row = data["map"]["rows"][1]  # the first key press selects the first cell
    cell = rows(section(body, "map")[section(body, "map").index("completion 1"):])[0]
    assert f"token 1: {json.dumps(data['map']['texts'][row['tokens'][1]], ensure_ascii=False)}" in cell
    assert float(re.search(r"delta (\S+)", cell).group(1)) == pytest.approx(row["delta"][1], rel=1e-3)
    assert f"weight version {row['versions'][1]}" in cell
    for name in data["map"]["parts"]:
        assert float(re.search(rf"\b{name} (\S+)", cell).group(1)) == pytest.approx(row["parts"][name][1], rel=6e-3)
    for shown in data["map"]["rows"]:
        for t, delta in enumerate(shown["delta"]):
            assert sum(of[t] for of in shown["parts"].values()) == pytest.approx(delta, abs=1e-4), "parts add up"


def test_the_worst_tokens_are_those_of_the_map_and_in_order(attributed, tmp_path):
    page, _ = attributed
    data = json.loads(re.search(r'id="page-data">(.*?)</script>', page.read_text(encoding="utf-8"), re.DOTALL).group(1))
    sizes = sorted((abs(delta) for row in data["map"]["rows"] for delta in row["delta"]), reverse=True)
    assert [abs(token["delta"]) for token in data["worst"]] == pytest.approx(sizes[:len(data["worst"])], rel=1e-3)
    body, _ = drawn(page, tmp_path)
    worst = section(body, "worst")
    assert worst.count("\t\t\t") > len(data["worst"]), "a row each"
    for token in data["worst"]:
        assert number(math.exp(token["behaviour"])) in rows(worst)


def test_on_a_phone_nothing_is_wider_than_the_screen(attributed, refereed, run, tmp_path):
    subprocess.run([str(small_run.TANDEM), "report", str(run)], check=True, capture_output=True, timeout=240)
    for page in (attributed[0], refereed[0], run / "report.html"):
        # The page is in a frame, because a browser window is at least 500 wide. Charts use the width of the frame.
        script = ("const frame = document.createElement('iframe'); frame.width = 390; frame.height = 800;"
                  "frame.srcdoc = document.documentElement.outerHTML.replace(/<(script|canvas)[^]*?<\\/\\1>/g, '');"
                  "frame.addEventListener('load', () => { document.querySelector('main').setAttribute('data-width',"
                  " frame.contentDocument.documentElement.scrollWidth); }); document.body.append(frame);")
        text = page.read_text(encoding="utf-8").replace("default-src 'none'", "default-src 'none'; frame-src *")
        loose = tmp_path / page.name
        loose.write_text(text, encoding="utf-8")
        body, _ = drawn(loose, tmp_path, script)
        assert int(re.search(r'data-width="(\d+)"', body).group(1)) <= 390, page.name


def test_where_the_gate_fails_the_page_has_the_finding_and_no_drift_number(run, tmp_path):
    def change(columns):
        columns["token_ids"][5] += 1
    capture = attribute_test.changed(run / "captures" / "step_2", tmp_path, change)
    page = tmp_path / "gate.html"
    done = subprocess.run([str(small_run.TANDEM), "drift", "attribute", str(capture), "--html", str(page)],
                          capture_output=True, text=True, timeout=300)
    assert done.returncode == 3, done.stdout + done.stderr
    body, text = drawn(page, tmp_path)
    assert "not comparable" in text and "tokens differ" in text and "1 of 32 completions" in text
    assert "No drift number is given" in text
    assert "<canvas" not in body and "nats" not in text


def test_a_fault_of_the_sampler_is_named_though_delta_sees_nothing_and_as_injected(model, tmp_path):
    with capture_test.Server(model, "--dtype", "fp32", "--set", "drift.inject.temperature=0.7", "--set",
                             "drift.inject.record=claimed") as server:
        capture_test.capture(server, model, tmp_path, completions=40)
    page = tmp_path / "attribution.html"
    subprocess.run([str(small_run.TANDEM), "drift", "attribute", str(tmp_path / "capture"), "--weights", str(model), "--html",
                    str(page)], check=True, capture_output=True, timeout=300)
    body, text = drawn(page, tmp_path)
    assert "Faults were injected into this capture" in text and "temperature 0.7" in text
    verdict = section(body, "verdict")
    assert "There is nothing to explain in the log-probs. But the tokens were not sampled from the recorded distribution: tokens drawn at temperature" in verdict
    cells = rows(verdict)
    assert "not in delta" in cells and "likelier by, nats" in cells
    assert "Attribution of a server's capture" in text


def test_an_exact_run_has_nothing_to_explain(model, tmp_path):
    capture = small_run.capture_of(tmp_path, model, "--numerics", "exact", dtype="bf16", engine={"dtype": "bf16"})
    page = tmp_path / "exact.html"
    subprocess.run([str(small_run.TANDEM), "drift", "attribute", str(capture), "--html", str(page)], check=True,
                   capture_output=True, timeout=300)
    _, text = drawn(page, tmp_path)
    assert "Server and trainer agree exactly on every token. There is nothing to explain." in text


def test_a_page_that_cannot_be_written_is_said_so(run, tmp_path):
    done = subprocess.run([str(small_run.TANDEM), "drift", "attribute", str(run / "captures" / "step_4"), "--html",
                           str(tmp_path / "no" / "such" / "page.html")], capture_output=True, text=True, timeout=300)
    assert done.returncode != 0 and "page.html" in done.stderr


def test_the_report_has_intervals_and_links_to_the_attribution(attributed, run, tmp_path):
    subprocess.run([str(small_run.TANDEM), "report", str(run)], check=True, capture_output=True, timeout=240)
    body, _ = drawn(run / "report.html", tmp_path)
    drift = section(body, "drift")
    for title in ("k3 with its interval", "Mean abs delta with its interval", "Kept by advantage sign", "Sampler calibration"):
        assert title in drift
    assert 'href="./captures/step_4/attribution.html"' in body
    assert "tandem drift attribute captures/step_2 --html captures/step_2/attribution.html" in drift


def test_a_synthetic_run_draws_lags_parts_probe_and_delivery_without_an_error(tmp_path):
    folder = tmp_path / "synthetic"
    subprocess.run([shutil.which("python3"), str(small_run.SOURCE / "tests/cli/report/make_run.py"), str(folder)], check=True)
    subprocess.run([str(small_run.TANDEM), "report", str(folder)], check=True, capture_output=True, timeout=240)
    body, _ = drawn(folder / "report.html", tmp_path)
    drift = section(body, "drift")
    for title in ("k3 by version lag", "Parts of the drift: share of the mean square", "Parts of the drift: mean |part|",
                  "Frozen probe set: k3", "Delivery"):
        assert title in drift
    assert rows(drift).index("lag 1") < rows(drift).index("lag 3-4"), "lags rise"


@pytest.fixture(scope="module")
def refereed(model, tmp_path_factory):
    """(page, JSON) of records whose proximal side divided by a temperature that it does not claim."""
    folder = tmp_path_factory.mktemp("records")
    drawn_by, path = folder / "drawn.jsonl", folder / "records.jsonl"
    prompts = folder / "prompts.txt"
    prompts.write_text("".join(f"Name a number like {i}:\n" for i in range(6)), encoding="utf-8")
    subprocess.run([str(small_run.TANDEM), "drift", "compare", "--a", "tandem:fp32", "--b", "tandem:fp32", "--model", str(model),
                    "--prompts", str(prompts), "--group-size", "8", "--max-new-tokens", "24", "--records-only", "--out",
                    str(drawn_by)], check=True, capture_output=True, timeout=240)
    header, *lines = [json.loads(line) for line in drawn_by.read_text(encoding="utf-8").splitlines()]
    header["proximal"]["engine"] = "vllm"
    asked = "".join(json.dumps({"ids": row["token_ids"], "num_prompt_tokens": row["prompt_length"]}) + "\n" for row in lines)
    scored = subprocess.run([str(small_run.TANDEM), "score", "--model", str(model), "--engine", "trainer", "--temperature", "0.8"],
                            input=asked, text=True, check=True, capture_output=True, timeout=240).stdout.splitlines()
    for row, answer in zip(lines, scored, strict=True):
        row["proximal_logprobs"] = json.loads(answer)["logprobs"]
        row.pop("proximal_entropy", None)
    path.write_text("".join(json.dumps(line) + "\n" for line in (header, *lines)), encoding="utf-8")
    page = folder / "page.html"
    done = subprocess.run([str(small_run.TANDEM), "drift", "why", str(path), "--model", str(model), "--html", str(page), "--json"],
                          capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return page, json.loads(done.stdout)


def test_a_page_with_a_referee_names_the_side_the_cause_and_its_share(refereed, tmp_path):
    page, result = refereed
    behaviour, proximal = result["referee"]["sides"]
    assert (behaviour["status"], proximal["status"]) == ("same_numbers", "named"), result["referee"]
    body, text = drawn(page, tmp_path)
    cause = proximal["causes"][0]
    assert cause["cause"] == "temperature"
    verdict = section(body, "verdict")
    assert result["referee"]["headline"] in verdict
    assert f"Proximal side (vllm): {cause['text']} (explains {with_bounds(cause['explained_share'])})." in verdict
    size = result["training_effect"]["mean_abs_delta"]
    assert f"Mean |delta| is {number(size['value'])} [{number(size['low'])}, {number(size['high'])}] nats a token" in verdict
    assert proximal["advice"] in verdict and "--generation-config" in verdict, "the engine's own name of the option"
    assert "tandem drift why" not in verdict, "it has been run"
    sides = rows(section(body, "sides"))
    assert "behaviour - referee" in sides and "referee - proximal" in sides and "behaviour - proximal" in sides
    assert sides[sides.index("the model's own numbers") - 1] == "Behaviour side (tandem)"
    assert sides[sides.index("cause named") - 1] == "Proximal side (vllm)"
    assert with_bounds(cause["explained_share"]) in sides
    assert any(cell.startswith(f"{proximal['num_tried']} suspects: ") and "temperature" in cell for cell in sides)
    lead = f"scored {result['referee']['num_tokens']:,} of {result['referee']['num_drawn']:,} drawn tokens"
    assert lead in section(body, "sides") and re.search(r"as the referee, in [\d.]+ (s|min)", section(body, "sides"))
    assert "By entropy" in section(body, "curves") and "cause named" in text


def test_bars_of_the_sides_share_a_scale_with_the_size_of_rounding(refereed, tmp_path):
    page, result = refereed
    body, _ = drawn(page, tmp_path)
    card = body[body.index("The gap, split by side"):body.index("Shaded:")]
    bars = [float(width) for width in re.findall(r'class="bar [a-z]+" style="left: ?[\d.]+%; ?width: ?([\d.]+)%', card)]
    bands = [float(width) for width in re.findall(r'class="band" style="left: ?[\d.]+%; ?width: ?([\d.]+)%', card)]
    sizes = [side["gap"]["mean_abs"] for side in result["referee"]["sides"]] + [result["training_effect"]["mean_abs_delta"]["value"]]
    rounding = result["referee"]["bf16_mean_abs"]
    scale = bands[0] / rounding
    assert bars == pytest.approx([scale * size for size in sizes], abs=0.3) and bands == [bands[0]] * 3


def test_what_the_referee_leaves_open_is_said_in_words(refereed, tmp_path):
    def change(data):
        behaviour, proximal = data["referee"]["sides"]
        behaviour.update(status="no_values", causes=[], engine="")
        again = {**proximal["causes"][0], "text": "top-k 40", "cause": "top_k"}
        proximal.update(status="one_of", causes=[proximal["causes"][0], again], num_left=7)
    body, _ = drawn(changed_page(refereed[0], tmp_path / "changed.html", change), tmp_path)
    sides = rows(section(body, "sides"))
    assert sides[sides.index("no log-probs") - 1] == "Behaviour side" and "one of several causes" in sides
    assert "7 suspects, for want of time" in sides and "top-k 40" in sides
    assert "behaviour - referee" not in sides
    assert "; or top-k 40 (explains " in section(body, "verdict")


def test_without_a_model_the_page_has_no_side_and_says_what_to_run(refereed, tmp_path):
    def change(data):
        del data["referee"]
        for token in data["worst"]:
            token["token"] = f"<{token['id']}>"
    body, text = drawn(changed_page(refereed[0], tmp_path / "changed.html", change), tmp_path)
    assert 'id="sides"' not in body and "behaviour - referee" not in text
    assert "--model DIR gives the text" in section(body, "worst")
    assert "the expected bias of GRPO's gradient by their sign is not known" in section(body, "training")
