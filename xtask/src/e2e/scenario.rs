//! Scenarios for every release.

use super::plan::{Engine, Plan};
use super::session::Setting;
use super::tap::Transport;

/// Releases that differ in their wire format (docs/internals/WIRE.md): column order, codec, protocol, message class.
pub(crate) const RELEASES: [&str; 6] = ["0.4.6.post4", "0.5.3", "0.5.6", "0.5.9", "0.5.13", "0.5.23"];
/// First release that supports msgpack.
const MSGPACK_SINCE: [u32; 3] = [0, 5, 15];

/// Scenario name, and its changes to the default setting.
type Scenario = (&'static str, fn(&mut Setting));

/// `--quick` runs only the first.
pub(crate) const SCENARIOS: [Scenario; 8] = [
    ("mixed ipc", |_| {}),
    ("3 ranks tcp", ranks),
    ("detokenizer", |setting| setting.detokenizer = true),
    ("detokenizer, 3 ranks tcp", |setting| {
        setting.detokenizer = true;
        ranks(setting);
    }),
    ("backlog", backlog),
    ("backlog, cumulative", |setting| {
        backlog(setting);
        setting.receiver = &["--cumulative"];
    }),
    ("backlog, http", |setting| {
        backlog(setting);
        setting.http = true;
    }),
    ("slow client", |setting| {
        setting.plan = Plan::PLAIN;
        setting.gap_ms = 1;
        setting.receiver = &["--busy", "5e-5"];
    }),
];

fn ranks(setting: &mut Setting) {
    setting.plan.senders = 3;
    setting.transport = Transport::Tcp;
}

fn backlog(setting: &mut Setting) {
    setting.plan = Plan::PLAIN;
    setting.gap_ms = 0;
    setting.backlog = true;
}

/// The requested or default releases with their default codec, and with msgpack where supported.
pub(crate) fn engines(asked: &[String]) -> Vec<Engine> {
    let releases = if asked.is_empty() {
        RELEASES.map(String::from).to_vec()
    } else {
        asked.to_vec()
    };
    let engine = |msgpack| {
        move |release: &String| Engine {
            release: release.clone(),
            msgpack,
        }
    };
    let speaks_msgpack = |release: &&String| {
        let numbers: Vec<u32> = release.split('.').map_while(|part| part.parse().ok()).collect();
        numbers.as_slice() >= MSGPACK_SINCE.as_slice()
    };
    let default = releases.iter().map(engine(false));
    default
        .chain(releases.iter().filter(speaks_msgpack).map(engine(true)))
        .collect()
}
