"""A Kubernetes API server of one pod, for `kubectl tokengap`: ephemeral containers that kubectl adds run at once, in runc."""

import json
import os
import subprocess
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

from levels import Level

from testbed.served import ROOT

POD = "/api/v1/namespaces/llm/pods/a-pod"
ENGINE = {"name": "sglang", "image": "engine"}
# What kubectl asks for before it edits a pod.
DISCOVERY = {
    "/api": {"kind": "APIVersions", "versions": ["v1"]},
    "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": []},
    "/api/v1": {"kind": "APIResourceList", "groupVersion": "v1", "resources": [
        {"name": "pods", "namespaced": True, "kind": "Pod", "verbs": ["get", "list", "watch"]},
        {"name": "pods/ephemeralcontainers", "namespaced": True, "kind": "Pod", "verbs": ["patch"]},
    ]},
}  # fmt: skip


def level_of(container):
    """The privileges of an ephemeral container.

    >>> security = {"runAsUser": 0, "capabilities": {"drop": ["ALL"], "add": ["BPF"]}, "seccompProfile": {"type": "Unconfined"}}
    >>> level_of({"name": "debugger", "securityContext": security})
    Level(name='debugger', add='BPF', works='-------', uid=0, seccomp=False, place='pod', other_user=False)
    """
    security = container["securityContext"]
    if security["capabilities"]["drop"] != ["ALL"] or not security.get("readOnlyRootFilesystem", True):
        raise ValueError(f"not as in the other levels: {security}")
    seccomp = security["seccompProfile"]["type"] == "RuntimeDefault"
    return Level(container["name"], " ".join(security["capabilities"].get("add") or []), uid=security["runAsUser"], seccomp=seccomp)


class Cluster:
    """Answers kubectl; `added` lists the ephemeral containers."""

    def __init__(self, image, folder):
        self.image, self.added, self.output = image, [], b""
        cluster = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                path = self.path.partition("?")[0]
                if path == f"{POD}/log":
                    return self.answer(cluster.output, "text/plain")
                pods = {"kind": "PodList", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": [cluster.pod()]}
                self.answer_json(DISCOVERY.get(path) or {POD: cluster.pod(), POD.removesuffix("/a-pod"): pods}.get(path))

            def do_PATCH(self):
                patch = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                cluster.start(patch["spec"]["ephemeralContainers"][0])
                self.answer_json(cluster.pod())

            def answer_json(self, document):
                failure = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404}
                self.answer(json.dumps(document or failure).encode(), "application/json", 200 if document else 404)

            def answer(self, body, kind, status=200):
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", len(body))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        Thread(target=self.server.serve_forever, daemon=True).start()
        self.config = Path(folder) / "kubeconfig"
        # JSON is YAML.
        self.config.write_text(json.dumps({
            "apiVersion": "v1", "kind": "Config", "current-context": "one",
            "clusters": [{"name": "one", "cluster": {"server": f"http://127.0.0.1:{self.server.server_port}"}}],
            "contexts": [{"name": "one", "context": {"cluster": "one", "user": ""}}],
        }))  # fmt: skip

    def pod(self):
        ended = {"terminated": {"exitCode": 0, "reason": "Completed"}}
        return {
            "kind": "Pod", "apiVersion": "v1", "metadata": {"name": "a-pod", "namespace": "llm", "resourceVersion": "1"},
            "spec": {"containers": [ENGINE], "ephemeralContainers": self.added},
            "status": {"ephemeralContainerStatuses": [{"name": container["name"], "state": ended} for container in self.added]},
        }  # fmt: skip

    def start(self, container):
        program, *args = container["command"]
        if program != "tokengap" or container["targetContainerName"] != ENGINE["name"]:
            raise ValueError(f"not tokengap beside the engine: {container}")
        done = self.image.run(level_of(container), container["name"], *args)
        self.output = done.stdout.encode() or done.stderr.encode()
        self.added = [container]

    def plugin(self, *args):
        """Runs `kubectl tokengap`; returns what it prints."""
        env = os.environ | {"KUBECONFIG": str(self.config), "PATH": f"{ROOT / 'deploy'}:{os.environ['PATH']}"}
        command = ["kubectl", "tokengap", "a-pod", "-n", "llm", "--image", "tokengap", *args]
        done = subprocess.run(command, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120)
        if done.returncode:
            raise ValueError(f"{command} exited with {done.returncode}: {done.stderr}")
        return done.stdout
