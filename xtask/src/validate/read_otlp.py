"""OpenTelemetry's protobuf classes read every line of the export and reject unknown fields.

read_otlp.py TRACES REPORT
"""

import base64
import json
import sys

from google.protobuf import json_format
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

IDS = ("traceId", "spanId", "parentSpanId")


def as_protobuf_wants(value):
    """Converts ids from hex, as in OTLP/JSON, to base64, as in protobuf's JSON."""
    if isinstance(value, dict):
        return {
            key: base64.b64encode(bytes.fromhex(inner)).decode() if key in IDS else as_protobuf_wants(inner)
            for key, inner in value.items()
        }
    return [as_protobuf_wants(inner) for inner in value] if isinstance(value, list) else value


def expect(what, found, wanted):
    if found != wanted:
        sys.exit(f"otlp: {what}: {found}, expected {wanted}")
    print(f"otlp: {what}: {found}")


def attributes(span):
    kinds = {a.key: a.value.WhichOneof("value") for a in span.attributes}
    return {a.key: getattr(a.value, kinds[a.key]) for a in span.attributes}


traces, report = sys.argv[1:]
with open(report) as file:
    report = json.load(file)

requests, spans, output_tokens, dropped, wrong = [], 0, 0, 0, []
with open(traces) as file:
    for line in file:
        data = json_format.Parse(json.dumps(as_protobuf_wants(json.loads(line))), TracesData(), ignore_unknown_fields=False)
        (scope,) = data.resource_spans[0].scope_spans
        root, by_id = scope.spans[0], {}
        for span in scope.spans:
            spans += 1
            by_id[span.span_id] = span
            parent = by_id.get(span.parent_span_id)
            fits = len(span.trace_id) == 16 and len(span.span_id) == 8 and span.trace_id == root.trace_id
            fits &= span.start_time_unix_nano <= span.end_time_unix_nano
            fits &= (span is root) == (parent is None) and (
                parent is None
                or parent.start_time_unix_nano <= span.start_time_unix_nano
                and span.end_time_unix_nano <= parent.end_time_unix_nano
            )
            if not fits:
                wrong.append((span.name, span.span_id.hex()))
        if root.name == "request":
            found = attributes(root)
            requests.append(root.trace_id)
            output_tokens += found["gen_ai.usage.output_tokens"]
            dropped += found.get("tokengap.chunks.dropped", 0)

expect("spans outside their trace", wrong, [])
expect("requests", len(requests), report["requests"]["seen"])
expect("output tokens", output_tokens, report["tokens"]["sent"])
expect("chunks dropped", dropped, report["chunks"]["dropped_confirmed"] or 0)
print(f"otlp: {spans} spans read")
