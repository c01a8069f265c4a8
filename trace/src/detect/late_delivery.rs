//! Tokens that wait in a receiver after it received them, where a receive does not end a wait or is not observed.

use super::server_threads::with_busiest;
use super::thresholds::{GAP_WARNING_NS, gap_severity};
use super::{DetectContext, Verdict, advice};
use crate::words::{duration, plural};

/// A pause at the client that is this many times as long as the engine's longest pause is not caused by the engine.
const UNEXPLAINED: u64 = 4;

pub(super) fn check(context: &DetectContext<'_>, found: &mut Vec<Verdict>) {
    let ledger = context.ledger;
    let engine = ledger.engine().facts();
    let receives = ledger.observes_receives();
    if receives && !engine.queues_after_receive() {
        return;
    }
    let waits = ledger.delivery_wait();
    let first = ledger.worst_delivery_wait();
    let first_ns = first.map_or(0, |worst| worst.ns);
    let (sent_ns, delivered_ns) = (ledger.itl_sent().max().unwrap_or(0), ledger.itl_delivered().max().unwrap_or(0));
    // A wait on a hop before the receive is reported by the findings about that hop.
    let on_hop_ns = ledger.groups().iter().filter_map(|group| group.queue_wait.max()).max().unwrap_or(0);
    let explained_ns = sent_ns.saturating_mul(UNEXPLAINED).max(on_hop_ns.saturating_mul(2));
    let silence_ns = if delivered_ns > explained_ns { delivered_ns } else { 0 };
    let worst = first_ns.max(silence_ns);
    let Some(severity) = gap_severity(worst) else {
        return;
    };
    let receiver = engine.receiver();
    let place = if receives {
        format!("in the {receiver} after it received them")
    } else {
        format!("between the {} and the client's connection", engine.source())
    };
    let mut parts = Vec::new();
    if first_ns >= GAP_WARNING_NS {
        parts.push(format!(
            "first tokens wait up to {} {place} (median {}, {})",
            duration(first_ns),
            duration(waits.quantile(0.5).unwrap_or(0)),
            plural(waits.count(), "request"),
        ));
    }
    if silence_ns >= GAP_WARNING_NS {
        parts.push(format!(
            "responses stall for up to {} and continue in a burst, while the {} sends new tokens at least every {}",
            duration(silence_ns),
            engine.source(),
            duration(sent_ns),
        ));
    }
    let mut verdict = Verdict::new(severity, parts.join("; "))
        .weight(worst)
        .with("requests", waits.count())
        .with("first_token_max_ns", first_ns)
        .with("stall_max_ns", delivered_ns)
        .with("engine_itl_max_ns", sent_ns)
        .advice(if receives {
            format!(
                "responses are written only after all queued messages are processed, so the whole queue delays each of them; if its \
                 event loop is busy, {}",
                advice::own_work(engine, receiver)
            )
        } else {
            engine.late_inside().to_owned()
        });
    if let Some(first) = first.filter(|first| first.ns == worst) {
        verdict = verdict.rid(&first.rid);
    }
    let recent = waits.recent(context.now).max().max(silence_ns);
    found.push(if receives { verdict } else { with_busiest(verdict, context, recent) });
}

#[cfg(test)]
mod tests {
    use super::super::scene::{MS, SECOND, Scene};
    use super::*;
    use crate::engine::{Engines, Facts};
    use crate::event::{Capabilities, Delivery, Response, What};
    use crate::ledger::Limits;

    #[derive(Debug)]
    struct Queueing;

    impl Facts for Queueing {
        fn name(&self) -> &'static str {
            "queueing"
        }

        fn title(&self) -> &'static str {
            "Queueing"
        }

        fn queues_after_receive(&self) -> bool {
            true
        }
    }

    /// One request with a token every 10 ms, which are received at once and delivered at these times in milliseconds.
    fn found(engines: Engines, delivered_at: &[(u64, u32)]) -> Vec<Verdict> {
        found_after(engines, 0, delivered_at)
    }

    /// The same, but the last token is received this many milliseconds later.
    fn found_after(engines: Engines, late: u64, delivered_at: &[(u64, u32)]) -> Vec<Verdict> {
        let capabilities = Capabilities::SENT | Capabilities::RECEIVED | Capabilities::DELIVERED;
        let delivered = delivered_at.iter().map(|&(at, tokens)| (at, Delivery::new("a", tokens, None)));
        found_with(engines, capabilities, late, delivered)
    }

    fn found_with<'d>(
        engines: Engines,
        capabilities: Capabilities,
        late: u64,
        delivered: impl IntoIterator<Item = (u64, Delivery<'d>)>,
    ) -> Vec<Verdict> {
        let mut scene = Scene::empty(engines, Limits::default()).with_hop(capabilities);
        for seq in 0..10 {
            let at = (1 + seq) * 10 * MS;
            scene.send(at, &[("a", 1, seq as u32 + 1)]);
            if capabilities.received {
                scene.receive(at + 1 + if seq == 9 { late * MS } else { 0 }, seq);
            }
        }
        for (at, delivery) in delivered {
            scene.apply(at * MS, What::Delivered(delivery));
        }
        scene.check(check, 60 * SECOND)
    }

    const QUEUEING: Engines = Engines(&[&Queueing]);

    #[test]
    fn a_late_first_token_and_a_stall_are_reported() {
        let late = found(QUEUEING, &[(20_000, 10)]);
        assert_eq!((late.len(), &*late[0].rid), (1, "a"));
        let summary = &late[0].summary;
        assert!(summary.starts_with("first tokens wait up to 19.990 s in the receiver"), "{summary}");
        let stalled = found(QUEUEING, &[(20, 1), (15_020, 9)]);
        let summary = &stalled[0].summary;
        assert!(summary.starts_with("responses stall for up to 15.000 s"), "{summary}");
    }

    #[test]
    fn a_wait_from_the_send_is_reported_where_receives_are_not_observed() {
        let capabilities = Capabilities::SENT | Capabilities::DELIVERED;
        let late = [(20_000, Delivery::new("a", 10, None))];
        let found = found_with(Engines::default(), capabilities, 0, late);
        let summary = &found[0].summary;
        let expected = "first tokens wait up to 19.990 s between the sender and the client's connection";
        assert!(summary.starts_with(expected), "{summary}");
    }

    #[test]
    fn a_response_with_one_body_waits_for_no_reader() {
        let capabilities = Capabilities::SENT | Capabilities::RECEIVED | Capabilities::DELIVERED;
        let whole = Delivery { finished: true, response: Response::Whole, ..Delivery::new("a", 10, Some(10)) };
        for capabilities in [capabilities, Capabilities::SENT | Capabilities::DELIVERED] {
            assert!(found_with(QUEUEING, capabilities, 0, [(20_000, whole)]).is_empty());
        }
    }

    #[test]
    fn a_stall_that_a_wait_on_the_hop_explains_is_not_reported() {
        assert!(found_after(QUEUEING, 8_000, &[(20, 1), (8_020, 1), (15_020, 8)]).is_empty());
    }

    #[test]
    fn prompt_deliveries_and_engines_without_such_a_queue_are_not_reported() {
        assert!(found(QUEUEING, &[(20, 1), (50, 9)]).is_empty());
        assert!(found(Engines::default(), &[(20_000, 10)]).is_empty());
    }
}
