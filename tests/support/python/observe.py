"""Observe ports as a client sees them: probes, pages, and the text form of Prometheus."""
import re
import urllib.error
import urllib.request


def get(address, path, timeout=10, method="GET"):
    """(status code, body); (0, reason) while nobody answers."""
    request = urllib.request.Request(f"http://{address}{path}", method=method)
    try:
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refused:
        return refused.code, refused.read().decode()
    except (urllib.error.URLError, ConnectionError, TimeoutError) as gone:
        return 0, str(gone)


def parse(page):
    """{series: value}, labels included in the name as they are written."""
    return {name: float(value) for name, value in
            (line.rsplit(" ", 1) for line in page.splitlines() if line and line[0] != "#")}


def scrape(address):
    """parse() of /metrics, or nothing while nobody listens."""
    code, page = get(address, "/metrics")
    return parse(page) if code == 200 else {}


def families(page):
    """{name: type} of a page."""
    return dict(re.findall(r"^# TYPE (\S+) (\S+)$", page, re.MULTILINE))
