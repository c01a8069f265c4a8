"""DuckDB reads events and CSV; sums must equal those of the report, and the queries of the documentation must return rows.

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
        sys.exit(f"tables: {what}: {found}, but {wanted} in the report")
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
    # Checking every line of a long recording would take minutes in Python.
    if lines <= 20_000:
        by_type[event["type"]].validate(event)

rows = "read_csv('requests.csv')"
# DuckDB does not infer a numeric type for a column without observations, which is empty in every row.
names = ("tokens_sent", "tokens_delivered", "chunks_sent", "chunks_dropped", "tokens_lost")
columns = ", ".join(["count(*)", *(f"sum({name}::BIGINT)" for name in names), "max(gap_ns::BIGINT)"])
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
# Without a known origin hop, use the hop on which the request was first observed. Abort messages are not chunks.
first = f"hop_id in ({', '.join(map(str, origins))})" if origins else "hop_id = first_hop"
counted = f"""select count(*) from (
    select *, arg_min(hop_id, at_ns) over (partition by rid) as first_hop from {events}
    where type = 'chunk' and rid not like 'HEALTH_CHECK%'
      and not (finish::VARCHAR is not distinct from 'abort' and listed is null and completion_tokens is null)) where {first}"""
expect("events: chunks sent", one(counted), (chunks["sent"],))
expect("events: findings", one(f"select count(*) from {events} where type = 'finding'"), (len(report["findings"]),))
end = one(f"select requests_seen, chunks_sent, chunks_dropped_confirmed, tokens_lost from {events} where type = 'end'")
expect("events: end", end, (report["requests"]["seen"], chunks["sent"], chunks["dropped_confirmed"], chunks["tokens_lost"]))

queries = re.findall(r"^```sql\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
if not queries:
    sys.exit(f"tables: {document} has no queries")
for number, query in enumerate(queries, 1):
    if "'delivered'" in query and tokens["delivered"] is None:
        print(f"tables: query {number} of the documentation needs deliveries, and none were observed")
        continue
    found = duckdb.sql(query).fetchall()
    if not found:
        sys.exit(f"tables: query {number} of the documentation has no results:\n{query}")
    print(f"tables: query {number} of the documentation: {len(found)} rows")
