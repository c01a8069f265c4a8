#!/bin/bash
# The steps of an administrator, in order. The last line of output confirms that all of them succeeded.
set -eu
wait_for() { # WHAT TIMES
  for _ in $(seq 300); do
    [ "$(grep -c -- "$1" /shared/log 2>/dev/null || true)" -ge "$2" ] && return
    sleep 0.1
  done
  echo "the log does not contain '$1' $2 times"
  exit 1
}
systemctl start tokengap
echo "started before the engine: $(systemctl is-active tokengap)"
systemctl start engine
wait_for 'attached to' 1
sleep 2
systemctl reload tokengap
wait_for 'configuration reloaded' 1
echo "reloaded: $(systemctl is-active tokengap)"
systemctl kill --signal=KILL --kill-who=main tokengap
wait_for 'attached to' 2
echo "restarts after the kill: $(systemctl show --property=NRestarts --value tokengap)"
systemctl restart engine
wait_for 'the engine exited' 1
wait_for 'attached to' 3
sleep 2
systemctl show --property=ActiveState,SubState,Type,NRestarts tokengap
grep -E '^(CapEff|NoNewPrivs|Seccomp):' "/proc/$(systemctl show --property=MainPID --value tokengap)/status"
systemctl stop tokengap
echo "stopped: $(systemctl show --property=Result --value tokengap)"
echo "ALL STEPS"
