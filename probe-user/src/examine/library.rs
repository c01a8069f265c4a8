//! Analysis of whether a libzmq's code is understood.

use std::path::Path;

use crate::discover::LibZmq;
use crate::probe_points::Known;

/// How the probe can attach to a libzmq.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Understood {
    /// A receive is observed at a single point with its socket and message; otherwise at entry and return.
    pub receives: bool,
    /// A refused send is observed at a single point.
    pub refused: bool,
    /// Whether its release has the known message layout (4.2.5 to 4.3.5); `None` if the file name does not contain the release.
    pub layout: Option<bool>,
}

/// Analyses the library's code. The error names a missing file or symbol.
pub fn understood(library: &LibZmq) -> Result<Understood, String> {
    let path: &Path = library.open_at.as_deref().ok_or("no permission to open its file")?;
    let probe_points = Known::default().of(path).map_err(|error| error.to_string())?;
    for symbol in ["zmq_msg_send", "zmq_msg_recv", "zmq_getsockopt"] {
        probe_points.entry(symbol).map_err(|error| error.to_string())?;
    }
    let known = |release: crate::discover::Release| ([4, 2, 5]..=[4, 3, 5]).contains(&release.number);
    Ok(Understood {
        receives: probe_points.received.is_some(),
        refused: probe_points.refused.is_some(),
        layout: library.release.map(known),
    })
}
