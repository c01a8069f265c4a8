"""DuckDB and pandas read Parquet exports; their values must equal those of CSV and the report, and the queries and Python examples of the
documentation must return rows.

read_parquet.py TOKENGAP FOLDER EXPORTS NOTEBOOK RECORDING...      two pages of the documentation; FOLDER is empty
"""

import json
import os
import re
import subprocess
import sys

import duckdb

program, folder, exports, notebook, *recordings = sys.argv[1:]
text = open(exports).read() + open(notebook).read()
queries, examples = (re.findall(rf"^```{kind}\n(.*?)^```", text, re.MULTILINE | re.DOTALL) for kind in ("sql parquet", "python"))
recordings = [os.path.abspath(recording) for recording in recordings]
os.chdir(folder)
# Columns whose text differs between the formats.
OTHER = ("recording", "capture_start", "first_seen")


def tokengap(*arguments):
    return subprocess.run([program, *arguments], check=True, stdout=subprocess.PIPE, text=True).stdout


def expect(what, found, wanted):
    if found != wanted:
        sys.exit(f"parquet: {what}: {found}, expected {wanted}")
    print(f"parquet: {what}: {found}")


requests = 0
for recording in recordings:
    name = os.path.basename(recording)
    table = name.replace(".tgap", ".parquet")
    tokengap("export", recording, "--format", "parquet", "--output", table)
    tokengap("export", recording, "--format", "csv", "--output", "requests.csv", "--force")
    columns = [column for column, *_ in duckdb.sql(f"describe '{table}'").fetchall() if column not in OTHER]
    # An empty cell of CSV is a null, except in a column of text.
    typed = ", ".join(f"coalesce({column}::VARCHAR, '')" for column in columns)
    written, read = f"select {typed} from '{table}'", f"select {typed} from read_csv('requests.csv', all_varchar = true)"
    expect(f"{name}: rows that differ from CSV", duckdb.sql(f"({written} except all {read}) union all ({read} except all {written})").fetchall(), [])
    micros = f"select epoch_us(first_seen) from '{table}' order by rid, first_seen_ns"
    dates = "select epoch_us(first_seen) from read_csv('requests.csv') order by rid, first_seen_ns"
    if duckdb.sql(micros).fetchall() != duckdb.sql(dates).fetchall():
        sys.exit(f"parquet: {name}: first_seen differs from CSV")
    report = json.loads(tokengap("replay", recording, "--json"))
    totals = f"select count(*), sum(tokens_sent), sum(tokens_delivered), sum(tokens_lost), any_value(recording) from '{table}'"
    wanted = (report["requests"]["seen"], report["tokens"]["sent"], report["tokens"]["delivered"], report["chunks"]["tokens_lost"], name)
    expect(f"{name}: requests, tokens, losses", duckdb.sql(totals).fetchall(), [wanted])
    requests += report["requests"]["seen"]

expect("requests of all recordings", duckdb.sql("select count(*) from '*.parquet'").fetchall(), [(requests,)])
expect("queries and Python examples of the documentation", (len(queries), len(examples)), (4, 1))
for query in queries:
    rows = duckdb.sql(query)
    print(rows)
    if not len(rows):
        sys.exit(f"parquet: query without results:\n{query}")

for example in examples:
    printed = subprocess.run([sys.executable, "-c", example], check=True, stdout=subprocess.PIPE, text=True).stdout
    print(printed)
    missing = [name for name in map(os.path.basename, recordings) if name not in printed]
    if missing or any(leg not in printed.split() for leg in ("socket", "queue", "prefill", "output", "delivery")):
        sys.exit(f"parquet: example without the legs of {missing}:\n{example}")
