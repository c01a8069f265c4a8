"""DuckDB reads events and CSV, their sums are the report's, and the queries of the documentation run.

read_tables.py FOLDER DOCUMENT      FOLDER has events.jsonl, requests.csv, otlp.jsonl and report.json
"""

import json
import os
import re
import sys

import duckdb
from jsonschema import Draft202012Validator

folder, document = sys.argv[1:]
text = open(document).read()
schema = json.load(open(os.path.join(os.path.dirname(document), "events.schema.json")))
os.chdir(folder)
report = json.load(open("report.json"))
chunks, tokens = report["chunks"], report["tokens"]


def expect(what, found, wanted):
    if found != wanted:
        sys.exit(f"tables: {what}: {found}, the report says {wanted}")
    print(f"tables: {what}: {found}")


def one(sql):
    (row,) = duckdb.sql(sql).fetchall()
    return row


Draft202012Validator.check_schema(schema)
by_type = {kind["properties"]["type"]["const"]: Draft202012Validator(kind) for kind in schema["oneOf"]}
lines = 0
for line in open("events.jsonl"):
    event = json.loads(line)
    lines += 1
    # Every line of a long recording would take minutes in Python.
    if lines <= 20_000:
        by_type[event["type"]].validate(event)

rows = "read_csv('requests.csv')"
columns = "count(*), sum(tokens_sent), sum(tokens_delivered), sum(chunks_sent), sum(chunks_dropped), sum(tokens_lost), max(gap_ns)"
wanted = (
    report["requests"]["seen"],
    tokens["sent"],
    tokens["delivered"],
    chunks["sent"],
    chunks["dropped_confirmed"],
    chunks["tokens_lost"],
    (report["gap_ns"] or {}).get("max"),
)
expect("csv: requests, tokens, chunks, losses, gap", one(f"select {columns} from {rows}"), wanted)

events = "read_json('events.jsonl', format = 'newline_delimited', sample_size = -1)"
expect("events: lines", one(f"select count(*) from {events}"), (lines,))
origins = [hop for hop, origin in duckdb.sql(f"select hop_id, bool_or(origin) from {events} where type = 'hop' group by 1").fetchall() if origin]
of_origin = f"type = 'chunk' and hop_id in ({', '.join(map(str, origins)) or 'null'}) and rid not like 'HEALTH_CHECK%'"
expect("events: chunks sent", one(f"select count(*) from {events} where {of_origin}"), (chunks["sent"],))
expect("events: findings", one(f"select count(*) from {events} where type = 'finding'"), (len(report["findings"]),))
end = one(f"select requests_seen, chunks_sent, chunks_dropped_confirmed, tokens_lost from {events} where type = 'end'")
expect("events: end", end, (report["requests"]["seen"], chunks["sent"], chunks["dropped_confirmed"], chunks["tokens_lost"]))

queries = re.findall(r"^```sql\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
if not queries:
    sys.exit(f"tables: {document} has no queries")
for number, query in enumerate(queries, 1):
    found = duckdb.sql(query).fetchall()
    if not found:
        sys.exit(f"tables: query {number} of the documentation finds nothing:\n{query}")
    print(f"tables: query {number} of the documentation: {len(found)} rows")
