//! Fault injection for tests (`cargo xtask faults`). Only the feature `fault-injection` compiles it. Without it every hook is empty;
//! released programs are built without it.
//!
//! `TOKENGAP_FAULT` selects one: `PLACE=panic@N` and `PLACE=block:SECONDS@N` at the Nth pass of a place, or `clock=jump`.

/// Injects the fault that the environment requests for this place, if this build has the feature. Places are `ledger`, `detectors`,
/// `decoder`, `recorder` and `writer`.
#[inline]
pub fn inject_at(place: &str) {
    #[cfg(feature = "fault-injection")]
    injected::inject_at(place);
    #[cfg(not(feature = "fault-injection"))]
    let _ = place;
}

/// Returns a reading of the wall clock, changed by the fault `clock=jump`.
#[inline]
pub(crate) fn apply_clock_fault(ns: u64) -> u64 {
    #[cfg(feature = "fault-injection")]
    return injected::apply_clock_fault(ns);
    #[cfg(not(feature = "fault-injection"))]
    ns
}

#[cfg(feature = "fault-injection")]
mod injected {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::Duration;

    const DAY_NS: u64 = 86_400_000_000_000;

    struct Fault {
        place: String,
        /// `None` means panic.
        block: Option<Duration>,
        at_pass: u64,
        passed: AtomicU64,
    }

    static FAULT: OnceLock<Option<Fault>> = OnceLock::new();
    static READINGS: AtomicU64 = AtomicU64::new(0);

    fn fault_setting() -> Option<String> {
        std::env::var("TOKENGAP_FAULT").ok()
    }

    /// The fault that the environment requests: `PLACE=panic@N` or `PLACE=block:SECONDS@N`. `None` without one, or if its text has another
    /// form.
    fn parse_requested_fault() -> Option<Fault> {
        let setting = fault_setting()?;
        let (place, rest) = setting.split_once('=')?;
        let (action, pass) = rest.split_once('@')?;
        // Any other action panics.
        let block = match action.strip_prefix("block:") {
            Some(seconds) => Some(Duration::from_secs(seconds.parse().ok()?)),
            None => None,
        };
        Some(Fault { place: place.into(), block, at_pass: pass.parse().ok()?, passed: AtomicU64::new(0) })
    }

    /// Blocks or panics if the requested fault is due: it is for this place in the code, and the program passes it for the requested time.
    pub(super) fn inject_at(place: &str) {
        let Some(fault) = FAULT.get_or_init(parse_requested_fault) else { return };
        if fault.place != place {
            return;
        }
        let pass = fault.passed.fetch_add(1, Ordering::Relaxed) + 1;
        if pass != fault.at_pass {
            return;
        }
        match fault.block {
            Some(time) => std::thread::sleep(time),
            None => panic!("injected fault at the {place}"),
        }
    }

    /// Returns the reading, changed if the environment requests `clock=jump`. Readings are then in turn correct, a day back and ten years
    /// ahead.
    pub(super) fn apply_clock_fault(ns: u64) -> u64 {
        if fault_setting().as_deref() != Some("clock=jump") {
            return ns;
        }
        match READINGS.fetch_add(1, Ordering::Relaxed) % 3 {
            0 => ns,
            1 => ns - DAY_NS,
            _ => ns + 3_650 * DAY_NS,
        }
    }
}
