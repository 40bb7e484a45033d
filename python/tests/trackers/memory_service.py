"""A service in memory that appends as W&B and MLflow do, and fails when a test says so."""
import dataclasses

from tandem_rl.trackers.service import ServiceError


class MemoryService:
    def __init__(self):
        self.runs = {}  # id -> rows in the order in which they came
        self.ended = {}  # id -> state, report
        self.counts = {}
        self.current = None
        self.arrived = set()
        self.fails = 0  # the next so many calls of `send`
        self.loses = 0  # the last so many rows, at the next begin
        self.began = 0

    def begin(self, facts, wanted):
        self.began += 1
        self.facts = facts
        self.current = wanted.service_run or f"{facts.run_id}/{wanted.attempt}"
        rows = self.runs.setdefault(self.current, [])
        if self.loses:
            del rows[-self.loses:]
            self.loses = 0
        self.arrived = {sent.row.number for sent in rows}
        return dataclasses.replace(wanted, service_run=self.current)

    def has(self, row):
        return row.number in self.arrived

    def send(self, rows):
        for sent in rows:
            if self.fails:
                self.fails -= 1
                raise ServiceError("the network is down")
            self.runs[self.current].append(sent)

    def show(self, events):
        self.counts = dict(events.counts)

    def end(self, facts, events, state, report):
        self.ended[self.current] = (state.value, report.name if report else None)

    def place(self):
        return f"to memory {self.current}"

    def steps(self, name="written-1/0"):
        return [sent.row.step for sent in self.runs[name]]
