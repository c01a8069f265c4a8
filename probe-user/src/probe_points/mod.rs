//! Selection of the instructions to probe in a library.

mod find;
mod image;
mod method;
mod walk;

use std::collections::HashMap;
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
pub(crate) const REMEMBERED: usize = 64;

/// Functions of libzmq, libc and OpenSSL that are probed.
pub(crate) const FUNCTIONS: [&str; 12] = [
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

/// What is looked for in a library.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Sought {
    /// The exported functions of libzmq, libc and OpenSSL.
    Functions,
    /// The only method of a `CPython` extension with one of these names.
    Method(&'static [&'static str]),
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum ProbePointsError {
    #[error("cannot read its file: {0}")]
    Read(#[source] ReadError),
    #[error("cannot analyse its code: {0}")]
    Image(#[from] ImageError),
    #[error("its file is larger than {LARGEST} bytes")]
    Large,
    #[error("it does not export {symbol}")]
    Missing { symbol: &'static str },
    #[error("it has no method {}", methods.join(" or "))]
    NoMethod { methods: &'static [&'static str] },
}

/// Probe points in one library, as offsets in its file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ProbePoints {
    /// Entry point of each function.
    pub(crate) functions: [Option<u64>; FUNCTIONS.len()],
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
    /// Entry of the method that passes messages to a server inside the process; `None` in other libraries.
    pub(crate) method: Option<u64>,
}

impl ProbePoints {
    /// Offset to probe for the entry or the return of `symbol`.
    pub(crate) fn entry(&self, symbol: &'static str) -> Result<u64, ProbePointsError> {
        let found = FUNCTIONS.iter().zip(self.functions).find(|(name, _)| **name == symbol);
        found.and_then(|(_, entry)| entry).ok_or(ProbePointsError::Missing { symbol })
    }

    /// Finds the probe points in the content of a library's file.
    pub(crate) fn find(sought: Sought, image: &[u8]) -> Result<Self, ProbePointsError> {
        match sought {
            Sought::Functions => Self::of_functions(image),
            Sought::Method(methods) => {
                let found = method::find(image, methods)?.ok_or(ProbePointsError::NoMethod { methods })?;
                Ok(Self { method: Some(found), ..Self::default() })
            }
        }
    }

    fn of_functions(image: &[u8]) -> Result<Self, ProbePointsError> {
        let image = Image::parse(image)?;
        let exports = image.exports(&FUNCTIONS)?;
        let mut probe_points = Self::default();
        let mut writes = [None; 2];
        for Export { name, address: first } in exports {
            let known = FUNCTIONS.iter().zip(&mut probe_points.functions).find(|(function, _)| **function == name);
            // A symbol may have several versions; use the first.
            let Some((_, function @ None)) = known else { continue };
            let Some(code) = code(&image, first) else { continue };
            let in_file = |address: u64| address.wrapping_sub(code.text.at).wrapping_add(code.offset);
            let entry = if cfg!(target_arch = "x86_64") { find::entry(code.text, first) } else { first };
            *function = Some(in_file(entry));
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
pub(crate) fn read(file: &RegularFile) -> Result<Vec<u8>, ProbePointsError> {
    file.read(LARGEST).map_err(|source| match source {
        ReadError::TooLong(_) => ProbePointsError::Large,
        source => ProbePointsError::Read(source),
    })
}

/// Cache of libraries that this process has analysed, by device, inode and what was looked for.
#[derive(Debug, Default)]
pub(crate) struct Known(HashMap<(u64, u64, Sought), Arc<ProbePoints>>);

impl Known {
    /// Probe points of an open library.
    pub(crate) fn find(&mut self, sought: Sought, file: &RegularFile) -> Result<Arc<ProbePoints>, ProbePointsError> {
        let key = (file.device, file.inode, sought);
        if let Some(known) = self.0.get(&key) {
            return Ok(Arc::clone(known));
        }
        let probe_points = Arc::new(ProbePoints::find(sought, &read(file)?)?);
        if self.0.len() == REMEMBERED {
            self.0.clear();
        }
        self.0.insert(key, Arc::clone(&probe_points));
        Ok(probe_points)
    }
}

#[cfg(test)]
mod tests;
