"""Checks the guarantees G1 to G4 (docs/dev/guarantees.md) on the histories that the processes of a run wrote
(docs/run_directory.md). It shares no code with the programs that it checks.

    python check_history.py DIRECTORY...       exit code 0: no violations; 1: violations, one per line;
                                                2: there is no history to check
"""
import collections
import dataclasses
import json
import pathlib
import sys


@dataclasses.dataclass(frozen=True)
class Violation:
    guarantee: str  # "G1" to "G4"
    where: str      # the file with the violation
    text: str

    def __str__(self):
        return f"{self.guarantee} {self.where}: {self.text}"


@dataclasses.dataclass
class Process:
    name: str
    role: str
    opened_ns: int
    events: list


# The rest of a group is asked for under its id and this (trainer/prompts/group_request.h).
FIRST_EXTENSION = 1 << 43


class NoHistory(Exception):
    """A directory has no history, so that the result "no violations" would be wrong."""


def read(path):
    """Reads a history. The last line may be incomplete, because the process was killed; no other line may be."""
    text = path.read_text(encoding="utf-8")
    events = []
    for number, line in enumerate(text[:text.rfind("\n") + 1].splitlines(), 1):
        try:
            events.append(json.loads(line))
        except json.JSONDecodeError as error:
            raise NoHistory(f"{path}:{number}: not JSON ({error})") from None
    if not events:
        return None
    first = events[0]
    if not isinstance(first, dict) or first.get("event") != "opened":
        raise NoHistory(f"{path}:1: no history of a process, whose first line is {{\"event\":\"opened\", ..}}: name the "
                        "directory of server.history and trainer.history, which holds nothing else")
    return Process(path.name, events[0]["role"], events[0]["unix_ns"], events[1:])


class Server:
    """One rollout server, from its start to its end."""

    def __init__(self, process, report):
        self.process, self.report = process, report
        self.address, self.in_flight = None, None
        self.installs = []                  # versions in order; the first is that of the model directory
        self.floor = None                   # the version that the next install of this epoch must exceed
        self.epoch, self.run_id = 0, ""
        self.digests = {}                   # (epoch, version) -> digest of the live weights
        self.drawn = collections.defaultdict(list)  # (run, group, index) -> [(tokens, spans)]
        for event in process.events:
            getattr(self, "on_" + event["event"])(event)

    def wrong(self, guarantee, text):
        self.report.violations.append(Violation(guarantee, self.process.name, text))

    def on_started(self, event):
        self.in_flight = event["in_flight"]
        self.installs = [event["version"]]
        self.digests[(0, event["version"])] = event["digest"]

    def on_listens(self, event):
        self.address = event["address"]

    def on_epoch(self, event):
        owner, before = (event["epoch"], event["run_id"]), (self.epoch, self.run_id)
        if owner == before:
            return  # its lease had ended; the run claims it again, and versions continue to rise
        if event["epoch"] <= self.epoch:
            self.wrong("G2", f"epoch {event['epoch']} of run '{event['run_id']}' begins after epoch {self.epoch} of run "
                             f"'{self.run_id}'")
        self.epoch, self.run_id, self.floor = event["epoch"], event["run_id"], None

    def on_installed(self, event):
        version = event["version"]
        if self.floor is not None and version <= self.floor:
            self.wrong("G2", f"version {version} is installed after version {self.floor} of the same epoch")
        self.installs.append(version)
        self.floor = version

    def on_committed(self, event):
        key = (event["epoch"], event["version"])
        if event["version"] != self.installs[-1]:
            self.wrong("G2", f"version {event['version']} is committed while {self.installs[-1]} is live")
        if self.digests.setdefault(key, event["digest"]) != event["digest"]:
            self.wrong("G2", f"version {key[1]} of epoch {key[0]} is committed with two digests")

    def on_drawn(self, event):
        self.report.completions += 1
        who = f"completion {event['index']} of group {event['group_id']} of run '{event['run_id']}'"
        spans = event["spans"]
        self.drawn[(event["run_id"], event["group_id"], event["index"])].append((event["tokens"], spans))
        check_labels(spans, event["tokens"], lambda text: self.wrong("G2", f"{who}: {text}"))
        first = self.first_install_of(spans, event["stopped_early"])
        if first is None:
            self.wrong("G2", f"{who} is labelled {spans}; the versions that were live are {self.installs}")
        if self.in_flight in ("abort", "drain") and len(spans) > 1:
            self.wrong("G3", f"{who} goes over an install ({spans}) although groups in flight {self.in_flight}")
        found = event.get("found_kv")
        if found is not None and (found["of_install"] != found["at_install"] or found["at_install"] < (first or 0)):
            self.wrong("G3", f"{who} found KV of install {found['of_install']} at install {found['at_install']}, "
                             f"its first token is of install {first}")

    def first_install_of(self, spans, stopped_early):
        """The index of the install whose weights sampled the first token, or None if no order of installs matches the labels.
        The last token of a completion that ended by itself is from the live weights."""
        place = len(self.installs)
        for number, (version, _) in enumerate(reversed(spans)):
            place -= 1
            if number > 0 or stopped_early:
                while place >= 0 and self.installs[place] != version:
                    place -= 1
            if place < 0 or self.installs[place] != version:
                return None
        return place


def check_labels(spans, tokens, wrong):
    if any(count < 1 for _, count in spans) or sum(count for _, count in spans) != tokens:
        wrong(f"labels {spans} for {tokens} tokens")


class Run:
    """One run with all the processes of its trainer, in the order of their starts."""

    def __init__(self, run_id, servers, report):
        self.run_id, self.report = run_id, report
        self.servers = collections.defaultdict(list)  # address -> servers that ran one after the other
        for server in servers:
            self.servers[server.address].append(server)
        self.outcomes = {}  # group -> (outcome, train step), for steps that the weights include

    def wrong(self, guarantee, text):
        self.report.violations.append(Violation(guarantee, self.process.name, text))

    def add(self, process):
        self.process = process
        self.asked = {}      # group -> the least version from which it may be sampled
        self.members = {}    # group -> completions that were asked for
        self.received = {}   # group -> oldest version
        self.offered = collections.defaultdict(set)  # server -> versions that were sent to it
        for event in process.events:
            handler = getattr(self, "on_" + event["event"], None)
            if handler is not None:  # other kinds of events.jsonl do not concern groups or weights
                handler(event)

    def on_began(self, event):
        self.size, self.refills = event["groups_per_step"], event["refills"]
        self.bound, self.version = event["max_staleness"], event["version"]
        self.next = event["first_group"]  # the first group that no step took
        self.given = []                   # what the step under way took
        for group, (what, step) in sorted(self.outcomes.items()):
            again = group >= event["first_group"]
            if step > self.version and again:
                del self.outcomes[group]  # the weights that included it are gone
            elif step <= self.version and again:
                self.wrong("G1", f"group {group} was {what} in step {step}, and the checkpoint of step {self.version} "
                                 "asks for it again")
            elif step > self.version and what == "trained":
                self.wrong("G1", f"group {group} was trained in step {step}, which the checkpoint of step "
                                 f"{self.version} does not have, and is not asked for again")

    def on_asked(self, event):
        group, members = event["group_id"], event["completions"]
        before = self.members.get(group, 0)  # a group may be asked for in parts
        if group in self.outcomes or before >= members:
            self.wrong("G1", f"group {group} is asked for twice")
        self.asked[group] = min(event["min_version"], self.asked.get(group, event["min_version"]))
        self.members[group] = members

    def on_received(self, event):
        group = event["group_id"]
        if group in self.received or group not in self.asked:
            self.wrong("G1", f"group {group} came twice, or was never asked for")
        indices = [completion["index"] for completion in event["completions"]]
        members = self.members.get(group, 0)
        if sorted(indices) != list(range(members)):
            self.wrong("G1", f"group {group} has the completions {indices}, not {members} of them")
        for completion in event["completions"]:
            self.check_completion(event["server"], group, completion)
        self.received[group] = min(version for completion in event["completions"]
                                   for version, _ in completion["spans"])

    def check_completion(self, server, group, completion):
        who = f"completion {completion['index']} of group {group} from {server}"
        spans, versions = completion["spans"], [version for version, _ in completion["spans"]]
        check_labels(spans, completion["tokens"], lambda text: self.wrong("G2", f"{who}: {text}"))
        if versions != sorted(set(versions)):
            self.wrong("G2", f"the labels of {who} fall: {spans}")
        unknown = set(versions) - self.offered[server]
        if unknown:
            self.wrong("G2", f"{who} is labelled with versions {sorted(unknown)}, which this run never sent there")
        if versions and versions[0] < self.asked.get(group, versions[0]):
            self.wrong("G2", f"{who} is of version {versions[0]}, asked for was {self.asked[group]} or newer")
        known = self.servers.get(server)
        # The rest of a group is a request under an id of its own, which any server may have answered.
        drawn = [one for served in known or [] for one in served.drawn[(self.run_id, group, completion["index"])]]
        drawn += [one for address in self.servers for served in self.servers[address]
                  for one in served.drawn[(self.run_id, FIRST_EXTENSION + group, completion["index"])]]
        if known and (completion["tokens"], spans) not in drawn:
            self.wrong("G2", f"{who} came with labels {spans}; what its server drew is {drawn}")

    def give(self, group, what, step):
        if group in self.outcomes:
            before, then = self.outcomes[group]
            self.wrong("G1", f"group {group} is {what} in step {step}, and was {before} in step {then}")
        self.given.append(group)
        self.outcomes[group] = (what, step)

    def end_step(self, step):
        """A step takes the next groups in order: groups_per_step of them, or with refill as many more as it needs."""
        count = max(len(self.given), self.size) if self.refills else self.size
        due = set(range(self.next, self.next + count))
        for group in sorted(set(self.given) - due):
            self.wrong("G1", f"group {group} is {self.outcomes[group][0]} in step {step}, which is made of the groups "
                             f"{min(due)} to {max(due)}")
        missing = sorted(due - set(self.given))
        if missing:
            self.wrong("G1", f"step {step} ends and nothing became of the groups {missing}")
        self.next += count
        self.given = []

    def on_trained(self, event):
        self.report.trained += len(event["group_ids"])
        if event["step"] != self.version + 1:
            self.wrong("G1", f"step {event['step']} is made of version {self.version}")
        for group in event["group_ids"]:
            if group not in self.received:
                self.wrong("G1", f"group {group} is trained in step {event['step']}, and never came")
            elif self.version - self.received[group] > self.bound:
                self.wrong("G4", f"group {group} is trained by version {self.version}; its oldest token is of version "
                                 f"{self.received[group]}, the bound is {self.bound}")
            self.give(group, "trained", event["step"])
        self.end_step(event["step"])
        self.version = event["step"]

    def on_run_finished(self, event):
        if event["step"] != self.version:
            self.wrong("G1", f"the run finished at step {event['step']}; the last step of its record is {self.version}")

    def on_group_dropped(self, event):
        if not event.get("reason"):
            self.wrong("G1", f"group {event['group_id']} is dropped without a reason")
        self.give(event["group_id"], "dropped", event["step"])

    def on_step_skipped(self, event):
        if not event.get("message"):
            self.wrong("G1", f"a train step after version {self.version} is skipped without a reason")
        for group in event["group_ids"]:
            self.give(group, "skipped", event["step"])
        self.end_step(event["step"])

    def on_push_failed(self, event):
        self.offered[event["server"]].add(event["version"])  # it may have arrived

    def on_push_committed(self, event):
        self.report.pushes += 1
        server, version, digest = event["server"], event["version"], event["digest"]
        self.offered[server].add(version)
        known = self.servers.get(server, [])
        if event["form"] == "none":  # it already had these weights
            there = any(digest in served.digests.values() for served in known)
        else:
            there = any(served.digests.get((event["epoch"], version)) == digest for served in known)
        if known and not there:
            self.wrong("G2", f"version {version} (epoch {event['epoch']}, digest {digest}) counts as delivered to "
                             f"{server}, which never had it live")


@dataclasses.dataclass
class Report:
    violations: list = dataclasses.field(default_factory=list)
    processes: int = 0
    completions: int = 0  # sampled by servers
    trained: int = 0      # groups, including those that a resume repeats
    pushes: int = 0


def check(directories):
    report = Report()
    paths = [path for directory in directories for path in sorted(pathlib.Path(directory).glob("*.jsonl"))]
    processes = sorted(filter(None, map(read, paths)), key=lambda process: process.opened_ns)
    report.processes = len(processes)
    servers = [Server(process, report) for process in processes if process.role == "rollout_server"]
    runs = {}
    for process in processes:
        began = [event for event in process.events if event["event"] == "began"]
        if process.role != "trainer" or not began:
            continue
        run_id = began[0]["run_id"]
        runs.setdefault(run_id, Run(run_id, servers, report)).add(process)
    return report


def main(directories):
    if not directories:
        print(__doc__)
        return 2
    try:
        for directory in directories:
            if not pathlib.Path(directory).is_dir():
                raise NoHistory(f"{directory}: no such directory")
        report = check(directories)
        if report.processes == 0:
            raise NoHistory(f"{', '.join(map(str, directories))}: no process wrote a history there")
    except NoHistory as error:
        print(error, file=sys.stderr)
        return 2
    for violation in report.violations:
        print(violation)
    print(f"{report.processes} processes, {report.completions} completions drawn, {report.trained} groups trained, "
          f"{report.pushes} deliveries: {len(report.violations)} violations")
    return 1 if report.violations else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
