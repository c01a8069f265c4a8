//! Workload of the harness: options that `engine/plan.py` turns into requests.

/// A release and its wire format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Engine {
    /// SGLang release, as on the package index.
    pub(crate) release: String,
    /// msgpack instead of the default pickle (0.5.15 and later).
    pub(crate) msgpack: bool,
}

impl Engine {
    /// Name of the engine: `0.5.9` or `0.5.23-msgpack`.
    pub(crate) fn name(&self) -> String {
        format!("{}{}", self.release, if self.msgpack { "-msgpack" } else { "" })
    }
}

/// The workload; see `engine/plan.py` for the meaning of each number.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) senders: u32,
    pub(crate) requests: u32,
    pub(crate) tokens: u32,
    pub(crate) rounds: u32,
    pub(crate) burst: u32,
    pub(crate) stagger: u32,
    pub(crate) stops: u32,
    pub(crate) aborts: u32,
    pub(crate) queued_aborts: u32,
    pub(crate) unary: u32,
}

impl Plan {
    /// One sender, 64 requests of 100 tokens, no special cases.
    pub(crate) const PLAIN: Self = Self {
        senders: 1,
        requests: 64,
        tokens: 100,
        rounds: 1,
        burst: 1,
        stagger: 0,
        stops: 0,
        aborts: 0,
        queued_aborts: 0,
        unary: 0,
    };

    /// All stream variants: staggered starts, bursts, stops, aborts, and requests that do not stream.
    pub(crate) const MIXED: Self = Self {
        requests: 40,
        tokens: 80,
        rounds: 2,
        burst: 3,
        stagger: 1,
        stops: 5,
        aborts: 4,
        queued_aborts: 3,
        unary: 6,
        ..Self::PLAIN
    };

    /// Returns the options of `python -m engine`.
    pub(crate) fn options(&self) -> Vec<String> {
        let numbers = [
            ("senders", self.senders),
            ("requests", self.requests),
            ("tokens", self.tokens),
            ("rounds", self.rounds),
            ("burst", self.burst),
            ("stagger", self.stagger),
            ("stops", self.stops),
            ("aborts", self.aborts),
            ("queued-aborts", self.queued_aborts),
            ("unary", self.unary),
        ];
        numbers
            .iter()
            .flat_map(|(name, value)| [format!("--{name}"), value.to_string()])
            .collect()
    }
}
