"""Prometheus scrapes a demo that also pushes to a collector. Both must have the same numbers as the report. As root, a real engine's
requests join their clients' traces in a collector.

usage: check.py TOKENGAP [PART...]

Needs the packages rotel (a collector) and opentelemetry-proto (protobuf classes). Everything listens on loopback.
"""

import gzip
import json
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
import urllib.request
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import rotel
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

TOKENGAP, ROOT = sys.argv[1], pathlib.Path(__file__).parents[3]
temporary = tempfile.TemporaryDirectory()
FOLDER = pathlib.Path(temporary.name)
LINGER_S = 6
# Metrics that need real processes, and predictions, which the dashboard hides where deliveries are observed.
NOT_IN_THE_DEMO = [
    "tokengap_chunks_predicted_dropped_total",
    "tokengap_hop_kernel_receive_bytes",
    "tokengap_consumer_cpu_ratio",
    "tokengap_cpu_time_seconds_total",
]
checks = 0


def equal(what, got, want):
    global checks
    checks += 1
    if got != want:
        sys.exit(f"{what}: {got!r}, but {want!r} in the report")


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


@contextmanager
def running(*command, log):
    with open(FOLDER / log, "wb") as out:
        process = subprocess.Popen([str(c) for c in command], stdout=out, stderr=out)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(20)


def get(url):
    with urllib.request.urlopen(url, timeout=10) as answer:
        return answer.read().decode()


def wait_for(what, condition, seconds=30):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            if value := condition():
                return value
        except OSError:
            pass
        time.sleep(0.2)
    sys.exit(f"timed out after {seconds} s waiting for {what}")


class Receiver(ThreadingHTTPServer):
    """The collector's backend, which parses its requests with the official classes. Refuses the first `refusals` requests."""

    daemon_threads = True

    def __init__(self, refusals=0):
        super().__init__(("127.0.0.1", 0), Handler)
        self.spans, self.metrics, self.headers, self.refusals = [], {}, [], refusals
        self.lock = threading.Lock()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def port(self):
        return self.server_address[1]


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        if self.headers["content-encoding"] == "gzip":
            body = gzip.decompress(body)
        with self.server.lock:
            self.server.headers.append(dict(self.headers))
            if self.server.refusals > 0:
                self.server.refusals -= 1
                self.send_response(503)
                self.send_header("retry-after", "1")
                self.send_header("content-length", "0")
                self.end_headers()
                return
            if "json" in self.headers["content-type"]:
                self.take_json(json.loads(body))
            elif self.path.endswith("traces"):
                for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                    about = attributes(resource.resource.attributes)
                    for scope in resource.scope_spans:
                        self.server.spans += [(about, span) for span in scope.spans]
            else:
                for resource in ExportMetricsServiceRequest.FromString(body).resource_metrics:
                    for scope in resource.scope_metrics:
                        for metric in scope.metrics:
                            self.server.metrics[metric.name] = metric
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def take_json(self, body):
        for resource in body.get("resourceSpans", []):
            for scope in resource["scopeSpans"]:
                self.server.spans += scope["spans"]


def attributes(pairs):
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in pairs}


def demo(scenario, *flags, env=None, tail=0.0):
    """Runs a complete demo; returns its report and its log."""
    command = [TOKENGAP, "demo", "--scenario", scenario, "--json", "--duration", "6s", *flags]
    done = subprocess.run([str(c) for c in command], env=env, capture_output=True, text=True, timeout=90)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}: exit code {done.returncode}: {done.stderr}{done.stdout}")
    return json.loads(done.stdout), done.stderr


def against_prometheus():
    for tool in ["prometheus", "promtool"]:
        if not shutil.which(tool):
            sys.exit(f"cannot find {tool}: install prometheus (Debian: apt-get install prometheus)")
    metrics, web = free_port(), free_port()
    (FOLDER / "prometheus.yml").write_text(f"""
global: {{scrape_interval: 1s, evaluation_interval: 1s}}
rule_files: [{ROOT}/deploy/prometheus/alerts.yml]
scrape_configs:
  - job_name: tokengap
    static_configs: [{{targets: ["127.0.0.1:{metrics}"]}}]
""")
    subprocess.run(["promtool", "check", "config", FOLDER / "prometheus.yml"], check=True, stdout=subprocess.DEVNULL)
    base = f"http://127.0.0.1:{web}"
    command = ["prometheus", f"--config.file={FOLDER}/prometheus.yml", f"--storage.tsdb.path={FOLDER}/tsdb",
               f"--web.listen-address=127.0.0.1:{web}", "--log.level=warn"]
    with running(*command, log="prometheus.log"):
        wait_for("Prometheus", lambda: "Ready" in get(f"{base}/-/ready"))
        lint = []

        def lint_metrics():
            text = wait_for("metrics", lambda: get(f"http://127.0.0.1:{metrics}/metrics"))
            lint.append(subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True))

        watcher = threading.Thread(target=lint_metrics)
        watcher.start()
        report, _ = demo("race", "--metrics", f"127.0.0.1:{metrics}", "--metrics-linger", f"{LINGER_S}s")
        watcher.join()
        if lint[0].returncode != 0:
            sys.exit(f"promtool reports errors: {lint[0].stderr}{lint[0].stdout}")

        def query(expression):
            answer = json.loads(get(f"{base}/api/v1/query?query=" + urllib.parse.quote(expression)))
            result = answer["data"]["result"]
            return float(result[0]["value"][1]) if result else None

        def value(series):
            return query(f"last_over_time({series}[2m])")

        compare_prometheus(report, value)
        # Scraped counters must never decrease.
        equal("counters that decreased", query("max(resets(tokengap_tokens_sent_total[2m]))"), 0.0)
        rules = json.loads(get(f"{base}/api/v1/rules"))["data"]["groups"][0]["rules"]
        equal("healthy rules", sum(rule["health"] == "ok" for rule in rules), len(rules))
        # For the panels with metrics of vLLM.
        demo("vllm", "--metrics", f"127.0.0.1:{metrics}", "--metrics-linger", f"{LINGER_S}s")
        dashboard(query)


def compare_prometheus(report, value):
    def hop(name, of):
        return f'tokengap_hop_{name}{{hop="{of}"}}'

    requests, tokens, chunks = report["requests"], report["tokens"], report["chunks"]
    for state in ["seen", "finished", "aborted", "joined_late", "overwritten", "orphaned"]:
        equal(f"requests {state}", value(f"tokengap_requests_{state}_total"), requests[state])
    equal("live", value("tokengap_requests_live"), requests["live"])
    for stage in ["sent", "received", "delivered", "missing_on_wire"]:
        equal(f"tokens {stage}", value(f"tokengap_tokens_{stage}_total"), tokens[stage])
    equal("tokens lost", value("tokengap_tokens_lost_total"), chunks["tokens_lost"])
    for fate in ["sent", "received", "delivered", "merged", "unjudged"]:
        equal(f"chunks {fate}", value(f"tokengap_chunks_{fate}_total"), chunks[fate])
    equal("confirmed drops", value("tokengap_chunks_dropped_total"), chunks["dropped_confirmed"])
    equal("predicted drops", value("tokengap_chunks_predicted_dropped_total"), chunks["dropped_predicted"])
    equal("gaps", value("tokengap_gap_seconds_count"), report["gap_ns"] and report["gap_ns"]["count"])
    for where in ["sent", "delivered", "sent_by_token", "delivered_by_token"]:
        equal(f"ITL {where}", value(f"tokengap_itl_{where}_seconds_count"), report["itl_ns"][where]["count"])
    for line in report["hops"]:
        name = line["name"]
        for field, series in [("frames_sent", "frames_sent_total"), ("frames_received", "frames_received_total"),
                             ("frames_forwarded", "frames_forwarded_total"), ("chunks", "chunks_total"),
                             ("bytes", "payload_bytes_total"), ("backlog_frames", "backlog_frames"),
                             ("backlog_max_frames", "backlog_max_frames")]:
            # Requests have no chunks.
            want = None if field == "chunks" and line["carries_requests"] else line[field]
            equal(f"{name} {field}", value(hop(series, name)), want)
        for field, series in [("queue_wait_ns", "queue_wait_seconds"), ("relay_ns", "relay_seconds"),
                             ("processing_ns", "processing_seconds"), ("wakeup_frames", "wakeup_frames")]:
            equal(f"{name} {field}", value(hop(f"{series}_count", name)), line[field] and line[field]["count"])
        if line["queue_wait_ns"]:
            for bound in [0.001, 0.01, 0.1, 1.0]:
                below = sum(c[2] for c in line["queue_wait_classes"] if c[1] <= bound * 1e9)
                all_below = sum(c[2] for c in line["queue_wait_classes"] if c[0] <= bound * 1e9)
                got = value(f'tokengap_hop_queue_wait_seconds_bucket{{hop="{name}",le="{bound}"}}')
                if not below <= got <= all_below:
                    sys.exit(f"{name}: {got} frames within {bound} s, but {below} to {all_below} in the report")
    for kind in {finding["kind"] for finding in report["findings"]}:
        found = sum(finding["kind"] == kind for finding in report["findings"])
        equal(f"findings {kind}", value(f'tokengap_findings_total{{kind="{kind}"}}'), found)
    equal("events", value("tokengap_self_events_total"), report["self"]["events"])
    equal("degraded", value("tokengap_self_degraded"), len(report["self"]["degraded"]))
    for cause, lost in report["self"]["missed_by_cause"].items():
        equal(f"missed {cause}", value(f'tokengap_self_events_missed_total{{cause="{cause}"}}'), lost)
    if not chunks["dropped_confirmed"]:
        sys.exit("the demo lost no tokens, so there is nothing to compare")


def dashboard(query):
    """Every expression of the dashboard returns data, except for metrics that the demo lacks."""
    board = json.loads((ROOT / "deploy/grafana/tokengap.json").read_text())
    expressions = [target["expr"] for panel in board["panels"] for target in panel.get("targets", [])]
    for name, setting in {"$__rate_interval": "1m", "$__range": "2m", "$job": ".*", "$instance": ".*", "$engine": ".*"}.items():
        expressions = [expression.replace(name, setting) for expression in expressions]
    empty = [expression for expression in expressions if query(f"last_over_time(({expression})[2m:1s])") is None]
    empty = [expression for expression in empty if not any(name in expression for name in NOT_IN_THE_DEMO)]
    if empty:
        sys.exit("these expressions of the dashboard return no data:\n" + "\n".join(empty))
    print(f"dashboard: {len(expressions)} expressions return data, or use metrics of attach only")


def rotel_command(http, receiver):
    agent = pathlib.Path(rotel.__file__).parent / "rotel-agent"
    return [agent, "start", "--otlp-http-endpoint", f"127.0.0.1:{http}", "--otlp-grpc-endpoint",
            f"127.0.0.1:{free_port()}", "--exporter", "otlp", "--otlp-exporter-protocol", "http",
            "--otlp-exporter-endpoint", f"http://127.0.0.1:{receiver.port}"]


def listens(port):
    with socket.create_connection(("127.0.0.1", port), 1):
        return True


def against_collector():
    receiver, http = Receiver(), free_port()
    through_collector(rotel_command(http, receiver), receiver, http)


def against_opentelemetry_collector():
    """The configuration in deploy, with the OpenTelemetry Collector if this machine has it."""
    program = shutil.which("otelcol") or shutil.which("otelcol-contrib")
    if not program:
        print("SKIPPED: there is no otelcol, so deploy/opentelemetry/collector.yaml was not run")
        return
    receiver, http = Receiver(), free_port()
    settings = [f"OTLP_LISTEN=127.0.0.1:{http}", f"OTLP_BACKEND=http://127.0.0.1:{receiver.port}"]
    through_collector(["env", *settings, program, "--config", ROOT / "deploy/opentelemetry/collector.yaml"], receiver, http)


def through_collector(command, receiver, http):
    """A collector at the port `http` passes everything on to `receiver`."""
    with running(*command, log="collector.log"):
        wait_for("the collector", lambda: listens(http))
        env = {"PATH": "/usr/bin:/bin", "OTEL_SERVICE_NAME": "llm", "OTEL_RESOURCE_ATTRIBUTES": "k8s.pod.name=pod%2D7"}
        report, log = demo("race", "--otlp", f"http://127.0.0.1:{http}", "--otlp-requests", "all",
                            "--otlp-interval", "1s", env=env)
        wait_for("the capture's span", lambda: any(span.name == "capture" for _, span in receiver.spans), 15)
        time.sleep(1)
    requests = [(about, span) for about, span in receiver.spans if span.name == "request"]
    equal("traces of requests", len(requests), report["requests"]["seen"])
    about, capture = next((about, span) for about, span in receiver.spans if span.name == "capture")
    equal("service.name", about["service.name"], "llm")
    equal("k8s.pod.name", about["k8s.pod.name"], "pod-7")
    totals = attributes(capture.attributes)
    for name, want in [("tokengap.tokens.sent", report["tokens"]["sent"]), ("tokengap.chunks.sent", report["chunks"]["sent"]),
                       ("tokengap.chunks.dropped", report["chunks"]["dropped_confirmed"]),
                       ("tokengap.tokens.lost", report["chunks"]["tokens_lost"])]:
        equal(f"capture {name}", totals.get(name), want)
    equal("capture's findings", sorted(e.name for e in capture.events), sorted(f["kind"] for f in report["findings"]))
    lost = sum(attributes(span.attributes).get("tokengap.tokens.lost", 0) for _, span in requests)
    equal("tokens lost over requests", lost, report["chunks"]["tokens_lost"])
    began = [span for _, span in receiver.spans if "tokengap.finding.state" in attributes(span.attributes)]
    if not any(span.parent_span_id == capture.span_id and span.trace_id == capture.trace_id for span in began):
        sys.exit("no finding has a span below the capture's span")

    def point(name, **labels):
        metric = receiver.metrics[name]
        data = getattr(metric, metric.WhichOneof("data"))
        for point in data.data_points:
            if attributes(point.attributes) == labels:
                return point
        return None

    equal("tokens sent", point("tokengap.tokens.sent").as_int, report["tokens"]["sent"])
    equal("confirmed drops", point("tokengap.chunks.dropped").as_int, report["chunks"]["dropped_confirmed"])
    itl = point("tokengap.itl.sent")
    equal("sent ITL", itl.count, report["itl_ns"]["sent"]["count"])
    equal("its buckets", sum(itl.bucket_counts), itl.count)
    equal("unit", receiver.metrics["tokengap.itl.sent"].unit, "s")
    equal("degraded", report["self"]["degraded"], [])


def against_a_receiver_in_trouble():
    """A push refused twice with Retry-After and then accepted loses nothing. Without a collector, everything is counted as lost, and the
    run ends normally."""
    receiver = Receiver(refusals=2)
    env = {"PATH": "/usr/bin:/bin", "OTEL_EXPORTER_OTLP_HEADERS": "authorization=Bearer%20abc"}
    report, log = demo("race", "--otlp", f"http://127.0.0.1:{receiver.port}", "--otlp-slower-than", "1h", env=env)
    equal("headers", {h.get("authorization") for h in receiver.headers}, {"Bearer abc"})
    equal("degraded", report["self"]["degraded"], [])
    if "retrying" not in log:
        sys.exit(f"the refusals were not logged: {log}")
    requests = [span for span in receiver.spans if span["name"] == "request"]
    if not 0 < len(requests) < report["requests"]["seen"]:
        sys.exit(f"{len(requests)} of {report['requests']['seen']} requests were pushed, expected those that lost tokens")
    began = time.monotonic()
    report, _ = demo("race", "--otlp", f"http://127.0.0.1:{free_port()}", "--otlp-queue", "64KiB", "--otlp-requests", "all")
    if time.monotonic() - began > 20:
        sys.exit("an unreachable collector kept the run from ending")
    degraded = report["self"]["degraded"]
    equal("degradations", len(degraded), 1)
    if "spans and" not in degraded[0]:
        sys.exit(f"degraded: {degraded}")
    equal("the demo's tokens", report["tokens"]["sent"], report["demo"]["truth"]["tokens"])
    print(degraded[0])


def traces_of_clients():
    """A real server's requests, each in the trace that its client began, with the legs of the report."""
    home = pathlib.Path(os.environ.get("TOKENGAP_SGLANG") or pathlib.Path.home() / ".cache/tokengap/sglang")
    if os.geteuid() != 0 or not (home / "venv-0.5.23").is_dir():
        print("SKIPPED: traces of clients need root and SGLang 0.5.23 (testbed/real/install.sh)")
        return
    sys.path.insert(0, str(ROOT))
    from testbed.real.__main__ import Attach, load
    from testbed.real.server import Server

    receiver, http = Receiver(), free_port()
    flags = ["--cumulative", "--streams", "4", "--seconds", "4", "--traceparent"]
    with running(*rotel_command(http, receiver), log="collector.log"), \
            Server(home, "0.5.23", ["--enable-metrics"], FOLDER / "server.log") as server:
        wait_for("the collector", lambda: listens(http))
        push = ["--otlp", f"http://127.0.0.1:{http}", "--otlp-requests", "all"]
        with Attach(pathlib.Path(TOKENGAP), server, FOLDER, *push) as attach:
            truth = load(server, FOLDER / "truth.jsonl", *flags)
        wait_for("the capture's span", lambda: any(span.name == "capture" for _, span in receiver.spans), 15)
        time.sleep(1)
    report = attach.report()
    events = subprocess.run([TOKENGAP, "export", attach.recording, "--format", "events"],
                            check=True, capture_output=True, text=True).stdout
    equal("degraded", report["self"]["degraded"], [])
    lines = {line["rid"]: line for line in report["slowest"]}
    clients = {request["rid"]: request for request in truth}
    requests = [span for _, span in receiver.spans if span.name == "request"]
    equal("requests", len(requests), len(clients))
    for request in requests:
        about = attributes(request.attributes)
        rid = about["gen_ai.response.id"]
        line, client = lines[rid], clients[rid]
        trace, caller = client["trace"]
        equal(f"{rid}: trace", request.trace_id.hex(), trace)
        equal(f"{rid}: trace in the report", line["trace_id"], trace)
        equal(f"{rid}: parent", request.parent_span_id.hex(), caller)
        equal(f"{rid}: flags", request.flags, 0x301)
        equal(f"{rid}: origin of its trace", about["tokengap.trace_id_from"], "traceparent")
        spans = {span.span_id: span for _, span in receiver.spans if span.trace_id.hex() == trace}
        parents = {span.parent_span_id for span in spans.values() if span is not request}
        equal(f"{rid}: parents outside of the trace's spans", parents - spans.keys(), set())
        stages = {span.name: span.end_time_unix_nano - span.start_time_unix_nano for span in spans.values()}
        # Behind the first send, spans show hops instead.
        legs = {leg["name"]: leg["ns"] for leg in line["ttft_legs"] if not {"output", "delivery"} & set(leg["name"].split("+"))}
        equal(f"{rid}: legs", {name: stages.get(name) for name in legs}, legs)
        equal(f"{rid}: first legs", list(legs)[:3], ["socket", "preparation", "dispatch"])
    everything = events + json.dumps(report) + str(receiver.spans)
    # Private headers, and two words of a prompt.
    equal("private text in outputs", re.findall(r"canary|w\d+ w\d+", everything), [])
    print(f"{len(requests)} requests joined their clients' traces; legs: {list(legs)}")


for part in [against_prometheus, against_collector, against_opentelemetry_collector, against_a_receiver_in_trouble,
             traces_of_clients]:
    if sys.argv[2:] and part.__name__ not in sys.argv[2:]:
        continue
    started = time.monotonic()
    part()
    print(f"{part.__name__.replace('_', ' ')}: ok, {time.monotonic() - started:.0f} s")
print(f"{checks} numbers compared")
