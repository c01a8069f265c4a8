//! Initial events of a recording that starts during a run: the engine and its hops.

use trace::Event;
use trace::event::{self, What};
use trace::ledger::Ledger;

/// Passes to `sink` the events that introduce the engine and every hop, with what `ledger` knows of them now. A hop is a channel between
/// two processes of the engine.
pub(super) fn emit_engine_and_hops(ledger: &Ledger, sink: &mut dyn FnMut(&Event<'_>)) {
    let at = ledger.now();
    sink(&Event::new(at, What::Engine(describe_engine(ledger))));
    for hop in ledger.hops() {
        // Sender and receiver, such as `scheduler->detokenizer`.
        let ends = ledger.groups()[hop.group].ends.as_str();
        let hop = event::Hop {
            endpoint: &hop.endpoint,
            worker: hop.worker,
            // Whether the engine's output begins on this hop, and whether it ends there.
            origin: hop.origin,
            last: hop.last,
            carries_requests: hop.carries_requests,
            ..event::Hop::new(hop.id, ends, hop.capabilities())
        };
        sink(&Event::new(at, What::Hop(hop)));
    }
}

/// What the ledger knows of the engine.
fn describe_engine(ledger: &Ledger) -> event::Engine<'_> {
    let engine = ledger.engine();
    event::Engine {
        name: engine.name.as_deref(),
        version: engine.version.as_deref(),
        mode: engine.mode,
        // How a waiting consumer processes several queued chunks, and the event-loop iterations until it runs.
        waiter: engine.waiter,
        turnaround: engine.turnaround,
    }
}

#[cfg(test)]
mod tests {
    use trace::engine::{Mode, Waiter};
    use trace::event::Capabilities;
    use trace::{Analysis, Config, HopId, MonoNs};

    use super::*;

    #[test]
    fn preamble_reproduces_the_engine_and_hops() {
        let mut early = Analysis::new(Config::default());
        let mut apply = |what| early.apply(&Event { at: MonoNs(1), what });
        apply(What::Engine(event::Engine {
            name: Some("example"),
            version: Some("0.5.9"),
            mode: Some(Mode::Incremental),
            waiter: Some(Waiter::KeepsLast),
            turnaround: None,
        }));
        for (id, name) in ["scheduler->detokenizer", "detokenizer->tokenizer"].into_iter().enumerate() {
            let hop = event::Hop::new(HopId(id as u16), name, Capabilities::SENT | Capabilities::FORWARDED);
            apply(What::Hop(event::Hop { endpoint: "ipc:///tmp/hop", origin: id == 0, last: id == 1, ..hop }));
        }
        let mut late = Analysis::new(Config::default());
        emit_engine_and_hops(early.ledger(), &mut |event| late.apply(event));
        let (before, after) = (early.ledger(), late.ledger());
        assert_eq!(after.engine(), before.engine());
        let describe = |ledger: &Ledger| format!("{:?}", (ledger.hops(), ledger.groups()));
        assert_eq!(describe(after), describe(before));
    }
}
