"""A client of observe ports: probes, pages, and Prometheus text format."""
import re
import urllib.error
import urllib.request


def get(address, path, timeout=10, method="GET"):
    """(status code, body), or (0, reason) if there is no answer."""
    request = urllib.request.Request(f"http://{address}{path}", method=method)
    try:
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refused:
        return refused.code, refused.read().decode()
    except (urllib.error.URLError, ConnectionError, TimeoutError) as gone:
        return 0, str(gone)


def parse(page):
    """{series: value}. Labels are a part of the name."""
    return {name: float(value) for name, value in
            (line.rsplit(" ", 1) for line in page.splitlines() if line and line[0] != "#")}


def scrape(address):
    """parse() of /metrics, or {} if there is no answer."""
    code, page = get(address, "/metrics")
    return parse(page) if code == 200 else {}


def families(page):
    """{name: type} of a page."""
    return dict(re.findall(r"^# TYPE (\S+) (\S+)$", page, re.MULTILINE))
