//! Initial events of a recording that starts during a run: the engine and its hops.

use trace::Event;
use trace::event::{self, What};
use trace::ledger::Ledger;

/// Emits the ledger's current state of the engine and of every hop.
pub(super) fn write(ledger: &Ledger, sink: &mut dyn FnMut(&Event<'_>)) {
    let at = ledger.now();
    let engine = ledger.engine();
    sink(&Event {
        at,
        what: What::Engine(event::Engine {
            version: engine.version.as_deref(),
            mode: engine.mode,
            waiter: engine.waiter,
            turnaround: engine.turnaround,
        }),
    });
    for hop in ledger.hops() {
        let said = event::Hop {
            id: hop.id(),
            name: &ledger.groups()[hop.group()].name,
            endpoint: hop.endpoint(),
            worker: hop.worker(),
            origin: hop.is_origin(),
            last: hop.is_last(),
            sees: hop.sees(),
        };
        sink(&Event {
            at,
            what: What::Hop(said),
        });
    }
}

#[cfg(test)]
mod tests {
    use trace::{Analysis, Config};

    use super::*;
    use crate::state::scene::Scene;

    #[test]
    fn who_comes_later_knows_the_same_engine_and_hops() {
        let scene = Scene::tapped();
        let mut late = Analysis::new(Config::default());
        write(scene.analysis.ledger(), &mut |event| late.apply(event));
        let (before, after) = (scene.analysis.ledger(), late.ledger());
        assert_eq!(after.engine(), before.engine());
        let told = |ledger: &Ledger| -> Vec<String> {
            let hops = ledger.hops().iter();
            hops.map(|h| {
                let name = &ledger.groups()[h.group()].name;
                format!(
                    "{name} {:?} {} {} {} {:?}",
                    h.id(),
                    h.endpoint(),
                    h.is_origin(),
                    h.is_last(),
                    h.sees()
                )
            })
            .collect()
        };
        assert_eq!(told(after), told(before));
    }
}
