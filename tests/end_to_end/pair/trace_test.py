"""Spans of a run, parsed with OpenTelemetry's messages: every line is an ExportTraceServiceRequest, and the spans of a server
are children of the trainer's span of the same call."""
import base64
import collections
import json

import pytest
from google.protobuf import json_format
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

import small_run

STEPS = 3


def with_base64_ids(value):
    """OTLP's JSON has ids in hex, while protobuf's JSON has all bytes in base64."""
    if isinstance(value, list):
        return [with_base64_ids(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {key: base64.b64encode(bytes.fromhex(item)).decode() if key in ("traceId", "spanId", "parentSpanId")
            else with_base64_ids(item) for key, item in value.items()}


def read(path):
    """{service: [span]} of a file."""
    spans = collections.defaultdict(list)
    for line in path.read_text(encoding="utf-8").splitlines():
        request = json_format.ParseDict(with_base64_ids(json.loads(line)), ExportTraceServiceRequest())
        for of_resource in request.resource_spans:
            service = next(a.value.string_value for a in of_resource.resource.attributes if a.key == "service.name")
            for scope in of_resource.scope_spans:
                spans[service] += scope.spans
    return spans


@pytest.fixture(scope="module")
def spans(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trace")
    model = small_run.make_model(folder / "model")
    config = small_run.write_config(folder, model, steps=STEPS, trace_file=str(folder / "trainer.jsonl"),
                                    checkpoint={"every": 2})
    code, output = small_run.run(config, "--set", f"server.trace_file={folder}/server.jsonl",
                                 "--set", "launch.num_servers=2")
    assert code == 0, output
    found = read(folder / "trainer.jsonl")
    assert set(found) == {"tandem-trainer"}
    found.update(read(folder / "server.jsonl"))
    assert set(found) == {"tandem-trainer", "tandem-rollout-server"}
    return found


def named(spans, name):
    return [span for of_service in spans.values() for span in of_service if span.name == name]


def attribute(span, key):
    value = next(a.value for a in span.attributes if a.key == key)
    return getattr(value, value.WhichOneof("value"))


def test_ids_are_unique_times_are_in_order_and_parents_are_there(spans):
    every = [span for of_service in spans.values() for span in of_service]
    by_id = {span.span_id: span for span in every}
    assert len(by_id) == len(every)
    for span in every:
        assert (len(span.trace_id), len(span.span_id)) == (16, 8)
        assert 0 < span.start_time_unix_nano <= span.end_time_unix_nano
        if span.parent_span_id:
            parent = by_id[span.parent_span_id]
            assert parent.trace_id == span.trace_id


def test_a_train_step_is_a_trace_with_its_phases(spans):
    steps = named(spans, "train_step")
    assert [attribute(step, "tandem.step") for step in steps] == list(range(1, STEPS + 1))
    assert len({step.trace_id for step in steps}) == STEPS
    for step in steps:
        assert step.parent_span_id == b""
        phases = [span.name for span in spans["tandem-trainer"]
                  if span.parent_span_id == step.span_id and span.kind == Span.SPAN_KIND_INTERNAL]
        assert {"rollout", "train", "push"} <= set(phases)
        assert ("checkpoint" in phases) == (attribute(step, "tandem.step") == 2)
        for span in spans["tandem-trainer"]:
            if span.parent_span_id == step.span_id and span.kind == Span.SPAN_KIND_INTERNAL:
                assert step.start_time_unix_nano <= span.start_time_unix_nano
                assert span.end_time_unix_nano <= step.end_time_unix_nano


def test_a_servers_group_is_under_the_trainers_call(spans):
    calls = {span.span_id: span for span in named(spans, "ask_for_group")}
    groups = named(spans, "generate_group")
    assert len(calls) == len(groups) == STEPS * 4
    for group in groups:
        call = calls[group.parent_span_id]
        assert (call.kind, group.kind) == (Span.SPAN_KIND_CLIENT, Span.SPAN_KIND_SERVER)
        assert attribute(call, "tandem.group_id") == attribute(group, "tandem.group_id")
        assert attribute(group, "tandem.num_completions") == 4
        assert call.start_time_unix_nano <= group.start_time_unix_nano  # both processes have the same clock
        assert group.end_time_unix_nano <= call.end_time_unix_nano
        parts = {span.name: span for span in spans["tandem-rollout-server"] if span.parent_span_id == group.span_id}
        assert set(parts) == {"queue", "prefill", "decode"}
        assert parts["queue"].start_time_unix_nano == group.start_time_unix_nano
        assert parts["queue"].end_time_unix_nano == parts["prefill"].start_time_unix_nano
        assert parts["prefill"].end_time_unix_nano == parts["decode"].start_time_unix_nano
        assert parts["decode"].end_time_unix_nano == group.end_time_unix_nano


def test_a_commit_is_under_the_push_of_its_step(spans):
    pushes = {span.span_id: span for span in named(spans, "push")}
    commits = [span for span in named(spans, "commit_update") if span.parent_span_id]
    assert len(commits) == STEPS * 2, "one for each server"
    for commit in commits:
        push = pushes[commit.parent_span_id]
        step = next(span for span in named(spans, "train_step") if span.span_id == push.parent_span_id)
        assert attribute(commit, "tandem.weight_version") == attribute(step, "tandem.step")
        assert push.start_time_unix_nano <= commit.start_time_unix_nano
        assert commit.end_time_unix_nano <= push.end_time_unix_nano
