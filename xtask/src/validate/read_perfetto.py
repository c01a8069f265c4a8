"""Perfetto's trace processor loads the trace without errors and finds every slice, flow and counter of the file.

read_perfetto.py TRACE REPORT DOCUMENT PROCESSOR.mjs FOLDER
"""

import json
import re
import subprocess
import sys
from collections import Counter

from perfetto.trace_processor import TraceProcessor

trace, report, document, server, folder = sys.argv[1:]


def expect(what, found, wanted):
    if found != wanted:
        sys.exit(f"perfetto: {what}: {found} in the trace processor, {wanted} in the export")
    print(f"perfetto: {what}: {found}")


with open(trace) as file:
    events = json.load(file)
with open(report) as file:
    report = json.load(file)
phases = Counter(event["ph"] for event in events)

node = subprocess.Popen(["node", server, folder], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
try:
    port = node.stdout.readline().strip()
    processor = TraceProcessor(addr=f"127.0.0.1:{port}", trace=trace)

    def one(sql):
        (row,) = processor.query(sql)
        return row.n

    errors = processor.query("select name, value from stats where value > 0 and severity in ('error', 'data_loss')")
    expect("errors", [(row.name, row.value) for row in errors], [])
    expect("slices", one("select count(*) n from slice"), sum(phases[phase] for phase in "Xbin"))
    expect("slices left open", one("select count(*) n from slice where dur < 0"), 0)
    expect("flows", one("select count(*) n from flow"), sum("flow_in" in event for event in events))
    values = sum(len(event["args"]) for event in events if event["ph"] == "C")
    expect("counter values", one("select count(*) n from counter"), values)

    # All requests of the report are present, with their stages nested.
    requests = "select * from slice where extract_arg(arg_set_id, 'args.state') is not null"
    expect("requests", one(f"select count(*) n from ({requests})"), report["requests"]["seen"])
    gap = (report["gap_ns"] or {}).get("max")
    longest = one("select max(dur) n from slice where name = 'first token gap'")
    expect("longest gap", longest, gap)
    inside = """select count(*) n from slice s join slice p on s.parent_id = p.id
                where s.name = 'first token gap' and extract_arg(p.arg_set_id, 'args.gap_ns') = s.dur"""
    expect("gaps inside their requests", one(inside), one("select count(*) n from slice where name = 'first token gap'"))
    hops = {hop["name"]: hop for hop in report["hops"]}
    for name, hop in hops.items():
        if hop["backlog_max_frames"]:
            sql = f"""select max(c.value) n from counter c join counter_track t on c.track_id = t.id
                      where t.name = 'backlog {name} frames'"""
            expect(f"largest backlog of {name}", int(one(sql)), hop["backlog_max_frames"])
    found = {row.name for row in processor.query("select distinct name from slice where name like '%-%'")}
    missing = [finding["kind"] for finding in report["findings"] if finding["kind"] not in found and "-" in finding["kind"]]
    expect("findings missing", missing, [])

    queries = re.findall(r"^```sql perfetto\n(.*?)^```", open(document).read(), re.MULTILINE | re.DOTALL)
    for number, query in enumerate(queries, 1):
        rows = sum(1 for _ in processor.query(query))
        print(f"perfetto: query {number} of the documentation: {rows} rows")
        # Both queries need received frames.
        if rows == 0 and report["tokens"]["received"] is not None:
            sys.exit(f"perfetto: query without results:\n{query}")
finally:
    node.kill()
    node.wait()
