//! Selection of the instructions to probe in a library.

mod find;
mod image;
pub(crate) mod method;
mod walk;

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use foreign::RegularFile;

pub(crate) use find::{Point, Received};
pub(crate) use image::ImageError;
use image::{Export, Image};
use walk::Code64;

use crate::discover::ReadError;

/// Maximum file size. libzmq and libssl have about 1 MB, libc 2 MB, and an extension module with libzmq linked in a few.
const LARGEST: usize = 64 << 20;
/// Maximum number of cached libraries; a cached file is read once for all processes that map it.
const REMEMBERED: usize = 64;

const FUNCTIONS: [&str; 12] = [
    "zmq_msg_send",
    "zmq_msg_recv",
    "zmq_send",
    "zmq_send_const",
    "zmq_recv",
    "zmq_getsockopt",
    "epoll_wait",
    "epoll_pwait",
    "poll",
    "SSL_write",
    "SSL_write_ex",
    "SSL_free",
];

#[derive(Debug, thiserror::Error)]
pub(crate) enum ProbePointsError {
    #[error("cannot read {path}: {source}")]
    Read { path: String, source: ReadError },
    #[error("cannot analyse {path}: {source}")]
    Image { path: String, source: ImageError },
    #[error("{path} is larger than {LARGEST} bytes")]
    Large { path: String },
    #[error("{path} does not export {symbol}")]
    Missing { path: String, symbol: &'static str },
    #[error("{path} has no method {}", methods.join(" or "))]
    NoMethod { path: String, methods: &'static [&'static str] },
}

/// Probe points in one library, as offsets in its file.
#[derive(Debug, Default)]
pub(crate) struct ProbePoints {
    path: String,
    /// Entry point of each function.
    functions: Vec<(&'static str, u64)>,
    /// Point inside `zmq_msg_recv`; `None` if the compiled code is not understood.
    pub(crate) received: Option<Received>,
    /// Point inside the function that `zmq_msg_send` calls; `None` as above.
    pub(crate) refused: Option<Point>,
    /// Point inside the function that `zmq_getsockopt` calls; `None` as above.
    pub(crate) option_request: Option<Point>,
    /// Point inside the function that `zmq_msg_recv` calls; `None` as above.
    pub(crate) waits: Option<Point>,
    /// Entry of the function that both writes of OpenSSL call, with the parameters of `SSL_write_ex`; `None` as above.
    pub(crate) tls_write: Option<u64>,
}

impl ProbePoints {
    /// Offset to probe for the entry or the return of `symbol`.
    pub(crate) fn entry(&self, symbol: &'static str) -> Result<u64, ProbePointsError> {
        let found = self.functions.iter().find(|(name, _)| *name == symbol);
        found.map(|(_, entry)| *entry).ok_or_else(|| ProbePointsError::Missing { path: self.path.clone(), symbol })
    }

    pub(crate) fn of(path: String, image: &[u8]) -> Result<Self, ProbePointsError> {
        let failed = |source| ProbePointsError::Image { path: path.clone(), source };
        let image = Image::parse(image).map_err(failed)?;
        let exports = image.exports(&FUNCTIONS).map_err(failed)?;
        let mut probe_points = Self { path, ..Self::default() };
        let mut writes = [None; 2];
        for Export { name, address: first } in exports {
            // A symbol may have several versions; use the first.
            if probe_points.functions.iter().any(|(known, _)| *known == name) {
                continue;
            }
            let Some(code) = code(&image, first) else { continue };
            let in_file = |address: u64| address.wrapping_sub(code.text.at).wrapping_add(code.offset);
            let entry = if cfg!(target_arch = "x86_64") { find::entry(code.text, first) } else { first };
            probe_points.functions.push((name, in_file(entry)));
            if !cfg!(target_arch = "x86_64") {
                continue;
            }
            let point = |found: Option<Point>| found.map(|found| Point { at: in_file(found.at), ..found });
            match name {
                "zmq_msg_recv" => {
                    probe_points.received =
                        find::received(code.text, first).map(|found| Received { at: in_file(found.at), ..found });
                    probe_points.waits = point(find::waits(code.text, first));
                }
                "zmq_msg_send" => probe_points.refused = point(find::refused(code.text, first)),
                "SSL_write" => writes[0] = Some(first),
                "SSL_write_ex" => writes[1] = Some(first),
                "zmq_getsockopt" => probe_points.option_request = point(find::option_request(code.text, first)),
                _ => {}
            }
        }
        if let [Some(write), Some(write_ex)] = writes
            && let Some(code) = code(&image, write_ex)
        {
            let inner = find::tls_write(code.text, write, write_ex);
            probe_points.tls_write = inner.map(|inner| {
                let at = find::entry(code.text, inner);
                at.wrapping_sub(code.text.at).wrapping_add(code.offset)
            });
        }
        Ok(probe_points)
    }
}

/// A loaded segment of a library, with its file offset.
struct Loaded<'a> {
    text: Code64<'a>,
    offset: u64,
}

/// Segment that contains `address`.
fn code<'a>(image: &Image<'a>, address: u64) -> Option<Loaded<'a>> {
    let segment = image.segments.iter().find(|segment| segment.contains(address))?;
    Some(Loaded { text: Code64 { bytes: segment.bytes, at: segment.address }, offset: segment.offset })
}

/// Reads a library's file of at most [`LARGEST`] bytes.
fn read(file: &RegularFile, path: &Path) -> Result<Vec<u8>, ProbePointsError> {
    let path = || path.display().to_string();
    file.read(LARGEST).map_err(|source| match source {
        ReadError::TooLong(_) => ProbePointsError::Large { path: path() },
        source => ProbePointsError::Read { path: path(), source },
    })
}

/// Cache of parsed libraries, by device and inode.
#[derive(Debug, Default)]
pub(crate) struct Known(HashMap<(u64, u64), Arc<ProbePoints>>);

impl Known {
    /// Probe points of an open library. The path is for messages only.
    pub(crate) fn of(&mut self, file: &RegularFile, path: &Path) -> Result<Arc<ProbePoints>, ProbePointsError> {
        let key = (file.device, file.inode);
        if let Some(known) = self.0.get(&key) {
            return Ok(Arc::clone(known));
        }
        let probe_points = Arc::new(ProbePoints::of(path.display().to_string(), &read(file, path)?)?);
        if self.0.len() == REMEMBERED {
            self.0.clear();
        }
        self.0.insert(key, Arc::clone(&probe_points));
        Ok(probe_points)
    }
}

#[cfg(test)]
mod tests;
