//! Whether a libzmq is one whose code is understood.

use std::path::Path;

use crate::discover::LibZmq;
use crate::sites::Known;

/// What the probe will do with a libzmq.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Understood {
    /// A take is seen at one place, its socket and message at hand; otherwise at entry and return.
    pub takes: bool,
    /// The same for a send that is refused.
    pub refused: bool,
    /// Its release is one with the layout of messages that is known, 4.2.5 to 4.3.5; `None` where the file's name does not tell.
    pub layout: Option<bool>,
}

/// Reads the library's code; the error says what of it is not to be found.
pub fn understood(library: &LibZmq) -> Result<Understood, String> {
    let path: &Path = library.open_at.as_deref().ok_or("its file may not be opened")?;
    let sites = Known::default().of(path).map_err(|error| error.to_string())?;
    for symbol in ["zmq_msg_send", "zmq_msg_recv", "zmq_getsockopt"] {
        sites.entry(symbol).map_err(|error| error.to_string())?;
    }
    let known = |release: crate::discover::Release| ([4, 2, 5]..=[4, 3, 5]).contains(&release.number);
    Ok(Understood {
        takes: sites.received.is_some(),
        refused: sites.refused.is_some(),
        layout: library.release.map(known),
    })
}
