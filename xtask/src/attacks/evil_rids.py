"""Sends request ids that are active in a terminal, a spreadsheet or a browser through a tap, and reads every report and export.

usage: evil_rids.py TOKENGAP SCHEMAS, in a folder of its own
"""

import csv
import io
import pickle
import re
import subprocess
import sys
import time
import types
import urllib.request

import zmq

TOKENGAP, SCHEMAS = sys.argv[1:]
MODULE = "sglang.srt.managers.io_struct"
EVIL = [
    "\x1b]0;pwn\x07\x1b[2J", '=HYPERLINK("http://e","x")', "+cmd|calc", "-2+3+cmd", "@SUM(1)", "\t=1+1", "\r=1", "\n=1",
    '"><script>alert(1)</script>', "';alert(1)//", "</script><img src=x onerror=alert(1)>", 'a"} 1\nevil_metric 1', "\u202eabc",
    "\u2066x", "{{7*7}}", "${jndi:x}", "`id`", "|x|y|", "[x](javascript:alert(1))", "<!--", "\\u003cscript\\u003e", "a,b;c", "%s%n",
    "\x9b31m", "\u2028x", "=1" * 3, "＝1+1", "＋1", "－1", "＠x", "﹢cmd", "﹣1", "﹫x", "﹦1", " =1+1", "\u00a0=1", "\u3000＝1",
    "'=1+1", "x\nFORGED: all is well", "\x00a", "x" * 4000,
]
HOP = "a<b>\"\x1b[31m->=x"
FORMULA = re.compile(r"[\s\u200b\ufeff]*[=+\-@\t\r\n\uff1d\uff0b\uff0d\uff20\ufe62\ufe63\ufe66\ufe6b]")
NUMBER = re.compile(r"-?\d+(\.\d+)?(e-?\d+)?")
RAW = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


def message_class():
    lines = [line.split() for line in open(SCHEMAS) if line.startswith("BatchTokenIDOut")]
    name, fields = lines[-1][0], lines[-1][3:]
    for module in ("sglang", "sglang.srt", "sglang.srt.managers", MODULE):
        sys.modules[module] = types.ModuleType(module)
    made = type(name, (), {"__module__": MODULE})
    setattr(sys.modules[MODULE], name, made)
    return made, fields


def frame(made, fields, number, is_last):
    message, count = made(), len(EVIL)
    message.__dict__.update(dict.fromkeys(fields))
    message.rids = EVIL
    message.output_ids = [[1000 + number]] * count
    message.completion_tokens = [number] * count
    message.prompt_tokens = [7] * count
    message.cached_tokens = [0] * count
    message.finished_reasons = [{"type": "abort", "message": rid, "err_type": rid} if is_last else None for rid in EVIL]
    return pickle.dumps(message, 4)


def record():
    made, fields = message_class()
    context = zmq.Context()
    receiver, sender = context.socket(zmq.PULL), context.socket(zmq.PUSH)
    receiver.bind("ipc://upstream")
    receiver.rcvtimeo = 5000
    command = [TOKENGAP, "tap", "--listen", "ipc://listen", "--upstream", "ipc://upstream", "--headless", "--record", "run.tgap"]
    # Port 0 would be unknown here. The port is free in general, and a failure to bind ends the test.
    port = free_port()
    tap = subprocess.Popen([*command, "--metrics", str(port), "--slowest", "50", "--duration", "8s", "--hop", HOP], stdout=subprocess.PIPE,
                           stderr=subprocess.PIPE)
    time.sleep(2)
    sender.connect("ipc://listen")
    for number in range(1, 11):
        sender.send(frame(made, fields, number, number == 10))
        receiver.recv()
        time.sleep(0.05)
    metrics = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics").read()
    report, errors = tap.communicate()
    if tap.returncode not in (0, 1):
        broken(f"tap ended with {tap.returncode}: {errors.decode()[-300:]!r}")
    return {"metrics": metrics, "tap": report, "tap's errors": errors}


def free_port():
    import socket
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def output(*arguments):
    ended = subprocess.run([TOKENGAP, *arguments, "run.tgap"], capture_output=True)
    if ended.returncode not in (0, 1):
        broken(f"{arguments} ended with {ended.returncode}: {ended.stderr.decode()[-300:]!r}")
    return ended.stdout


def broken(what):
    print("BROKEN:", what)
    sys.exit(1)


outputs = record()
for name in ("text", "json", "markdown", "html"):
    outputs[f"report {name}"] = output("report", "--format", name, "--slowest", "50")
for name in ("perfetto", "otlp", "events", "csv"):
    outputs[f"export {name}"] = output("export", "--format", name)
faults = []
for name, written in outputs.items():
    text = written.decode("utf-8", "replace")
    if raw := RAW.search(text):
        faults.append(f"{name} has a raw {raw[0]!r}")
    # In HTML a line break is a space.
    if name != "report html" and re.search("^FORGED", text, re.MULTILINE):
        faults.append(f"{name} has a line of the attacker")
    if "<script>alert" in text and name in ("report html", "report markdown"):
        faults.append(f"{name} has a script")
    if "<img src=x" in text and name in ("report html", "report markdown"):
        faults.append(f"{name} has an image")
    if name == "metrics" and re.search("^evil_metric", text, re.MULTILINE):
        faults.append(f"{name} has a metric of the attacker")
rows = list(csv.reader(io.StringIO(outputs["export csv"].decode(), newline="")))
cells = [cell for row in rows for cell in row]
faults += [f"a CSV cell starts with {cell[:12]!r}" for cell in cells if FORMULA.match(cell) and not NUMBER.fullmatch(cell)]
print(f"{len(outputs)} outputs, {len(cells)} cells, {sum('HYPERLINK' in cell for cell in cells)} with the formula")
if not any("HYPERLINK" in cell for cell in cells):
    broken("the export lists no request of the attacker, so nothing was tested")
for fault in faults:
    print(fault)
if faults:
    broken("; ".join(faults[:3]) + f" ({len(faults)} in total)")
print("held")
