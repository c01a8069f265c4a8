//! The relay as a source.

use std::thread::JoinHandle;

use serde_json::{Value, json};
use session::{About, Flow, LiveSource};
use trace::Event;
use zmq_tap::relay::{Direction, Pair};

use super::{Tap, describe_refused_handshakes, limit_warnings};

/// Maximum number of observations per poll. Bounds a poll to some milliseconds, so that ticks and signals are not delayed.
const OBSERVATIONS_A_TURN: usize = 256;

impl About for Tap {
    fn kind(&self) -> &'static str {
        "tap"
    }

    /// The observed message formats, and the relay's own counters.
    fn wire_json(&self) -> Option<Value> {
        let forms = self.forms().iter();
        let forms = forms.map(
            |form| json!({"class": form.class, "codec": form.codec, "schema": form.schema, "frames": form.frames}),
        );
        let relay = self.stats();
        Some(json!({"forms": forms.collect::<Vec<_>>(), "relay": {
            "connections": relay.connections_total,
            "accept_errors": relay.accept_errors,
            "connections_refused": relay.connections_refused,
            "connections_unanswered": relay.connections_unanswered,
            "upstreams_distrusted": relay.upstreams_distrusted,
            "upstreams_forbidden": relay.upstreams_forbidden,
            "reads_shortened": relay.reads_shortened,
            "bytes_forward": relay.bytes_forward,
            "bytes_backward": relay.bytes_backward,
        }}))
    }

    /// Lines for the report: connections that were not relayed or not decoded, and limits that the relay reached.
    fn degraded_lines(&self) -> Vec<String> {
        let mut degraded = self.unreadable_hops.clone();
        degraded.extend(self.served.iter().flatten().flat_map(|served| served.clients.server.degraded_lines()));
        for tapped in self.hops.tapped.iter().filter(|tapped| tapped.refused_connections > 0) {
            let count = tapped.refused_connections;
            let Pair { listen, upstream } = &tapped.hop.pair;
            degraded.push(format!("{count} connections to {listen} were closed because nothing is listening on {upstream}: is the upstream running?"));
        }
        // Each hop has one entry per direction, in this order.
        let directions = [Direction::Forward, Direction::Backward].into_iter().cycle();
        for (direction, tapped) in directions.zip(&self.hops.tapped) {
            degraded.extend(describe_refused_handshakes(direction, tapped));
        }
        degraded.extend(limit_warnings(&self.stats()));
        degraded
    }
}

impl LiveSource for Tap {
    fn is_in_the_path(&self) -> bool {
        true
    }

    fn keep_ids(&mut self) {
        self.translator.show_ids();
    }

    /// Emits new observations of the relay as events, at most as many as fit into one turn.
    fn poll(&mut self, sink: &mut dyn FnMut(&Event<'_>)) -> Flow {
        self.translator.report_engine(sink);
        let mut observed = 0;
        // Limited, so that a busy relay does not keep the run loop from everything else.
        while observed < OBSERVATIONS_A_TURN
            && let Some(observation) = self.observations.poll()
        {
            self.translate_observation(observation, sink);
            observed += 1;
        }
        let shows_deliveries = self.served.iter().flatten().any(|served| served.clients.server.shows_deliveries());
        self.hops.set_deliveries_visible(shows_deliveries, sink);
        // The relay's last observations may come while it closes.
        let has_closed = self.closing.as_ref().is_some_and(JoinHandle::is_finished);
        match observed {
            0 if has_closed && self.observations.is_empty() => Flow::Ended,
            0 => Flow::Idle,
            _ => Flow::Busy,
        }
    }

    /// Stops the relay: it accepts no more connections, drains and closes. Observations continue until the end.
    fn stop(&mut self) {
        if let Some(relay) = self.relay.take() {
            // On a thread, because dropping the relay waits until it has drained.
            self.closing = Some(std::thread::spawn(move || drop(relay)));
        }
    }
}

/// Lowers the priority of this thread, which decodes, so that the relay's thread is scheduled first.
pub fn lower_decoding_priority() {
    if let Err(error) = zmq_tap::relay::lower_priority() {
        tracing::info!("cannot lower the priority of decoding: {error}");
    }
}
